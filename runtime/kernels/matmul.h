#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// Multiplies two matrices: out (+)= op(a) op(b), where op transposes when its flag is set.
//
// f32 runs on oneDNN, and so does bf16 where the processor has a fast dot product of bf16 pairs;
// else blocks of bf16 are unpacked to f32 by our own loops, as blocks of f16 always are; f64 has
// loops of our own too. 16-bit operands accumulate in f32, and with an f32 `out` the sums are never
// rounded to 16 bits. On a CUDA device all are cuBLASLt's.
//
// Shapes: op(a) [M, K], op(b) [K, N], out [M, N]; M, N and K may be 0 (K = 0 is a product of
//   zeros). a and b have any strides: one whose rows or columns are adjacent elements is read in
//   place, others are copied. Rows of out may be strided, elements of a row are adjacent.
// Ownership: primitives are cached in the device; their scratchpad is workspace of its allocator,
//   held during the call.
// Threads: as ThreadPool: one kernel at a time on a device.
// REQUIRES: a and b of one float dtype; out of the same, or f32 for 16-bit operands; out overlaps
//   neither.
void Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& out,
            Write write = Write::kOverwrite);

}  // namespace sherd::kernels
