#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "sherd/runtime/base/error.h"

// What CUDA answers, as our errors.
namespace sherd::cuda {

// The status of an answer: "cudaMemcpyAsync: an illegal memory access was encountered
// (cudaErrorIllegalAddress)". `call` is the function's name.
absl::Status StatusOf(cudaError_t answer, const char* call);

// Throws unless it is cudaSuccess. An error of earlier work that shows here is said to be one.
void Check(cudaError_t answer, const char* call);

}  // namespace sherd::cuda
