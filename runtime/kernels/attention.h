#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Scaled dot-product attention in tiles, forward and backward; no T x S matrix ever exists.
// Source: Dao et al. 2022, "FlashAttention".
namespace sherd::kernels {

struct AttentionOptions {
  // Query t sees key s when s <= t + (S - T): the last query sees every key.
  bool causal = true;
  // Factor of the scores, usually 1 / sqrt(D).
  double scale = 1.0;
};

// out = softmax(scale q k^T) v for each head, and lse = the log of each softmax's denominator.
//
// A query that sees no key gives zeros and an lse of -infinity.
// Shapes: q and out [B, T, H, D]; k and v [B, S, Hkv, D], H a multiple of Hkv: query head h reads
//   key head h / (H / Hkv). lse [B, H, T] contiguous. D at most 256, any T and S. All but lse may
//   be strided in B, T and H, adjacent in D; inputs of other strides are copied first.
// Dtypes: one float dtype; lse f64 for f64, else f32. 16-bit is unpacked tile by tile; scores,
//   softmax and sums are f32.
// Cost: a workspace of 2 S D elements for each thread.
// REQUIRES: out overlaps no input.
void Attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const Tensor& out, const Tensor& lse);

// The three gradients of Attention, from its `out` and `lse`; scores are recomputed tile by tile.
// An undefined gradient tensor is skipped.
//
// Each (batch, key head) is one job with one writer, so bits do not depend on the number of
// threads. Shapes: grad and grad_q as q, grad_k and grad_v as k, strided in the same way. Cost: a
// workspace of 5 S D elements for each thread. REQUIRES: the gradients overlap no input and not
// each other.
void AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                       const Tensor& grad_q, Write write_q, const Tensor& grad_k, Write write_k,
                       const Tensor& grad_v, Write write_v);

}  // namespace sherd::kernels
