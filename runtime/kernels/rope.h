#pragma once

#include <cstdint>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Rotary position embedding.
// In the half-split layout: channel i < D/2 is paired with channel i + D/2.
// Source: Su et al. 2021, "RoFormer".
namespace sherd::kernels {

struct RopeTables {
  Tensor cos;  // [T, D/2]
  Tensor sin;  // [T, D/2]
};

// Tables for positions [0, positions): angle = position * theta^(-2i/D), computed in f64.
// REQUIRES: head_size even; dtype f32 (for f32, bf16 and f16 activations) or f64.
RopeTables MakeRopeTables(const Device& device, DType dtype, int64_t positions, int64_t head_size,
                          double theta = 10000.0);

// Rotates every pair (a, b) of a head: out (+)= (a cos - b sin, b cos + a sin).
//
// Token t has position first_position + t. `inverse` rotates the other way, which is the backward
// of the forward. Shapes: x and out [B, T, H, D], strided in B, T and H, adjacent in D (another x
// is
//   copied first): a slice of a fused projection needs no copy. cos, sin [positions, D/2]
//   contiguous, positions >= first_position + T.
// REQUIRES: x and out of one float dtype, tables f64 for f64, else f32. out may be x.
void Rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t first_position,
          bool inverse, const Tensor& out, Write write = Write::kOverwrite);

}  // namespace sherd::kernels
