#include "sherd/runtime/cuda/internal/check.h"

#include "absl/strings/str_cat.h"

namespace sherd::cuda {
namespace {

// Errors of kernels and copies that ran before; the device is lost to this process after them.
bool IsLate(cudaError_t answer) {
  return answer == cudaErrorIllegalAddress || answer == cudaErrorLaunchFailure ||
         answer == cudaErrorAssert || answer == cudaErrorMisalignedAddress ||
         answer == cudaErrorIllegalInstruction || answer == cudaErrorHardwareStackError ||
         answer == cudaErrorECCUncorrectable || answer == cudaErrorLaunchTimeout;
}

}  // namespace

absl::Status StatusOf(cudaError_t answer, const char* call) {
  if (answer == cudaSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrCat(call, ": ", cudaGetErrorString(answer), " (", cudaGetErrorName(answer), ")",
                   IsLate(answer) ? "; work queued before this call failed, and this process "
                                    "cannot use the device any more"
                                  : "");
  if (answer == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  if (answer == cudaErrorNoDevice || answer == cudaErrorInvalidDevice) {
    return absl::NotFoundError(text);
  }
  if (answer == cudaErrorInsufficientDriver) return absl::FailedPreconditionError(text);
  return absl::InternalError(text);
}

void Check(cudaError_t answer, const char* call) {
  if (answer == cudaSuccess) return;
  cudaGetLastError();  // an error of this call is told once
  ThrowError(Error(StatusOf(answer, call)));
}

}  // namespace sherd::cuda
