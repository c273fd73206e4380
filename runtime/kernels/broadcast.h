#pragma once

#include <cstdint>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Arithmetic of two tensors whose shapes are matched by NumPy's rules.
namespace sherd::kernels {

enum class Arithmetic : uint8_t { kAdd, kSub, kMul, kDiv };

// Sets `out` to the shape that a and b are both repeated to: dimensions are matched from the
// innermost outwards, and an extent of 1, or a missing one, takes the other's. False, with `out`
// unchanged, if two extents differ and neither is 1.
bool BroadcastShape(const Shape& a, const Shape& b, Shape& out);

// out (+)= a op b, each repeated to the shape of `out`.
//
// Shapes: out's is a multiple of both by the rules above; a and b have any strides.
// Dtypes: a and b of one float dtype, out of the same or f32 for 16-bit operands; 16-bit is
// computed
//   in f32 and rounded once, into f32 not at all.
// REQUIRES: out is one of the inputs that has its shape and strides, or overlaps neither.
void Broadcast(Arithmetic op, const Tensor& a, const Tensor& b, const Tensor& out,
               Write write = Write::kOverwrite);

}  // namespace sherd::kernels
