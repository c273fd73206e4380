// What there is of cuda_device.h in a build without CUDA.
#include "sherd/runtime/cuda/cuda_device.h"

namespace sherd {
namespace {

constexpr char kWithout[] = "this build has no CUDA (SHERD_WITH_CUDA)";

}  // namespace

absl::StatusOr<Device> OpenCuda(const CudaOptions&) { return absl::UnimplementedError(kWithout); }

int CountCudaDevices(std::string* why) {
  if (why != nullptr) *why = kWithout;
  return 0;
}

}  // namespace sherd
