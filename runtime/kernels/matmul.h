#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// Multiplies two matrices: out (+)= op(a) op(b), where op transposes when its flag is set.
//
// f32 and bf16 run on oneDNN; bf16 operands accumulate in f32, and with an f32 `out` the products
// are never rounded to bf16. Where oneDNN has no bf16 (ISA below AVX-512) the operands are unpacked
// to f32 first. f64 runs on our own blocked loops. Bits do not depend on the number of threads.
// Shapes: op(a) [M, K], op(b) [K, N], out [M, N]; M, N and K may be 0 (K = 0 is a product of
// zeros).
//   Rows may be strided, elements of a row are adjacent.
// Ownership: primitives are cached in the device; their scratchpad is workspace of its allocator,
// held
//   during the call.
// Threads: as ThreadPool: one kernel at a time on a device.
// REQUIRES: a and b of one float dtype; out of the same, or f32 for bf16 operands; out overlaps
// neither.
void Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& out,
            Write write = Write::kOverwrite);

}  // namespace sherd::kernels
