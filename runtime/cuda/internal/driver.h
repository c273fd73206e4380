#pragma once

#include <cuda.h>

#include "absl/status/statusor.h"

namespace sherd::cuda {

// Functions of the driver that the runtime library has no name for. They are looked up, not linked:
// a program that needs libcuda.so.1 does not start on a machine without it.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;

  // Throws unless it is CUDA_SUCCESS.
  void Check(CUresult answer, const char* call) const;
};

// Errors: kFailedPrecondition naming the function that this driver lacks.
absl::StatusOr<Driver> LoadDriver();

}  // namespace sherd::cuda
