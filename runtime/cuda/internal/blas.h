#pragma once

#include "sherd/runtime/core/device.h"
#include "sherd/runtime/kernels/internal/matmul_problem.h"

namespace sherd::cuda {

// Queues a product that is not empty on the calling thread's queue of `device`, by cuBLASLt.
//
// 16-bit operands accumulate in f32, and parts of a sum that were split meet in f32, so every
// output is rounded once. f32 is computed in f32 unless the device was opened with `tf32`.
// A handle and a workspace (32 MiB from capability 9 on, else 4) belong to each queue that was ever
// used here, made at its first product; descriptors and the chosen algorithm are kept for all that
// they depend on. The same call gives the same bits on the same device and library.
//
// Threads: safe; several queues of one device work at once.
// Errors: kResourceExhausted for the workspace; kUnimplemented, naming dtypes, shapes and strides,
//   when cuBLASLt has no algorithm; kInternal for what else it answers.
void MultiplyMatrices(const Device& device, const kernels::internal::MatmulProblem& problem);

}  // namespace sherd::cuda
