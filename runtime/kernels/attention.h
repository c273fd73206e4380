#pragma once

#include <cstdint>
#include <span>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Scaled dot-product attention in tiles, forward and backward; no T x S matrix ever exists.
// Source: Dao et al. 2022, "FlashAttention".
namespace sherd::kernels {

// What a query sees, and what is dropped of it. The tensors are i32 or i64 on the device
// of the queries, undefined where nothing is to be said.
struct AttentionOptions {
  // Query t sees key s when s <= t + (S - T): the last query sees every key.
  bool causal = true;
  // Factor of the scores, usually 1 / sqrt(D).
  double scale = 1.0;
  // [B, S]: keys whose element is 0 are seen by nobody, and what lies in them, NaN included,
  // reaches nobody. Padding on either side costs nothing; holes cost a pass over the scores.
  Tensor key_mask = {};
  // [B]: the same for keys from that index on.
  Tensor key_lengths = {};
  // [documents + 1]: cumulative lengths over the tokens of all rows, from 0, ascending, at most
  // B T. A query sees keys of its own document alone, and the cost is that of the documents one by
  // one. Documents end with their row; tokens behind the last are in none, and see nothing.
  // Needs S = T and neither of the two above.
  Tensor cu_seqlens = {};
  // The probability that a softmax's probability is set to zero, in [0, 1); the rest is divided by
  // 1 - dropout. Costs about one call of Philox for four scores, forward and backward. The word of
  // query t (its index in the row), head h and key s is
  //   Philox4x32(random_key, sample, h << 52 | t << 26 | s / 4)[s % 4],
  // kept when word * 2^-32 >= dropout: as in kernels::Dropout, with the key for the channel.
  double dropout = 0.0;
  // For dropout; the op of autograd fills them in. `row_samples` has B entries.
  uint64_t random_key = 0;
  std::span<const int64_t> row_samples = {};
};

// out = softmax(scale q k^T) v for each head, and lse = the log of each softmax's denominator.
//
// A query that sees no key, a row of only padding included, gives zeros and an lse of -infinity;
// its gradient is zero, and it adds nothing to those of keys and values.
// Shapes: q and out [B, T, H, D]; k and v [B, S, Hkv, D], H a multiple of Hkv: query head h reads
//   key head h / (H / Hkv). lse [B, H, T] contiguous. D at most 256, any T and S. All but lse may
//   be strided in B, T and H, adjacent in D; inputs of other strides are copied first.
// Dtypes: one float dtype; lse f64 for f64, else f32. 16-bit is unpacked tile by tile; scores,
//   softmax and sums are f32. On CUDA, 16-bit operands meet on tensor cores, for which
//   probabilities and gradients of scores are rounded to 16 bits.
// Cost: a workspace of 2 S D elements for each thread, S of the longest document; on CUDA, a byte
//   for each key of a mask, or 16 for each 64 tokens and each document.
// Errors: kInvalidArgument, before anything is written, for key_lengths outside [0, S] or
//   cu_seqlens that do not ascend as above, naming them, or dropout outside [0, 1). On a device
//   that works on its own, which no host waits for here, wrong lengths are an error of a later call
//   that waits, and what was written then means nothing.
// REQUIRES: out overlaps no input.
void Attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const Tensor& out, const Tensor& lse);

// The three gradients of Attention, from its `out` and `lse`; scores are recomputed tile by tile.
// An undefined gradient tensor is skipped.
//
// Each (batch or document, key head) is one job with one writer, so bits do not depend on the
// number of threads. Shapes: grad and grad_q as q, grad_k and grad_v as k, strided in the same way.
// Cost: a workspace of 5 S D elements for each thread; on CUDA, that of the forward and B H T
// numbers, and scores are computed twice, once for grad_q, once for grad_k and grad_v. REQUIRES:
// the gradients overlap no input and not each other.
void AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                       const Tensor& grad_q, Write write_q, const Tensor& grad_k, Write write_k,
                       const Tensor& grad_v, Write write_v);

}  // namespace sherd::kernels
