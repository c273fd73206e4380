#include "sherd/runtime/cuda/internal/driver.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/cuda/internal/check.h"

namespace sherd::cuda {
namespace {

constexpr unsigned kVersion = 11020;  // all functions of Driver exist since CUDA 11.2

template <typename Function>
absl::Status Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t answer =
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
  if (answer != cudaSuccess) return StatusOf(answer, "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("this CUDA driver has no ", name));
  }
  function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

}  // namespace

void Driver::Check(CUresult answer, const char* call) const {
  if (answer == CUDA_SUCCESS) return;
  const char* text = nullptr;
  error_string(answer, &text);
  ThrowError(Error(absl::StatusCode::kInternal,
                   absl::StrCat(call, ": ", text == nullptr ? "an unknown error" : text)));
}

absl::StatusOr<Driver> LoadDriver() {
  Driver driver;
  for (const absl::Status& status :
       {Find("cuMemGetAllocationGranularity", driver.granularity),
        Find("cuMemAddressReserve", driver.reserve), Find("cuMemAddressFree", driver.free),
        Find("cuMemCreate", driver.create), Find("cuMemRelease", driver.release),
        Find("cuMemMap", driver.map), Find("cuMemUnmap", driver.unmap),
        Find("cuMemSetAccess", driver.set_access), Find("cuGetErrorString", driver.error_string)}) {
    if (!status.ok()) return status;
  }
  return driver;
}

}  // namespace sherd::cuda
