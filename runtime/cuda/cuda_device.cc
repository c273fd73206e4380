#include "sherd/runtime/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/cuda/internal/backend.h"
#include "sherd/runtime/cuda/internal/check.h"
#include "sherd/runtime/cuda/internal/range.h"

namespace sherd {
namespace {

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// How many devices there are. Errors: why there are none.
absl::StatusOr<int> Devices() {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const cudaError_t answer = cudaGetDeviceCount(&count);
  if (answer != cudaSuccess) cudaGetLastError();
  if (driver == 0) return absl::NotFoundError("there is no CUDA driver on this machine");
  if (answer == cudaErrorInsufficientDriver || (answer != cudaSuccess && driver < runtime)) {
    return absl::FailedPreconditionError(absl::StrCat("the CUDA driver is too old: it has version ",
                                                      VersionText(driver), ", this build needs ",
                                                      VersionText(runtime)));
  }
  if (answer == cudaErrorNoDevice || (answer == cudaSuccess && count == 0)) {
    return absl::NotFoundError("there is no CUDA device that this process can see");
  }
  if (answer != cudaSuccess) return cuda::StatusOf(answer, "cudaGetDeviceCount");
  return count;
}

absl::StatusOr<cuda::DeviceProperties> PropertiesOf(int index, bool tf32) {
  cudaDeviceProp p = {};
  const cudaError_t answer = cudaGetDeviceProperties(&p, index);
  if (answer != cudaSuccess) return cuda::StatusOf(answer, "cudaGetDeviceProperties");
  int driver = 0;
  cudaDriverGetVersion(&driver);
  return cuda::DeviceProperties{
      .index = index,
      .multiprocessors = p.multiProcessorCount,
      .shared_bytes_per_block = static_cast<int64_t>(p.sharedMemPerBlockOptin),
      .capability = 10 * p.major + p.minor,
      .tf32 = tf32,
      .description = absl::StrCat(p.name, ", compute capability ", p.major, ".", p.minor, ", ",
                                  p.totalGlobalMem >> 30, " GiB, driver ", VersionText(driver))};
}

absl::StatusOr<int64_t> MemoryOf(int index, int64_t most) {
  size_t free = 0, total = 0;
  cudaError_t answer = cudaSetDevice(index);
  if (answer == cudaSuccess) answer = cudaMemGetInfo(&free, &total);
  if (answer != cudaSuccess) return cuda::StatusOf(answer, "cudaMemGetInfo");
  // Others may leave: what is theirs now counts as ours later.
  return most == 0 ? static_cast<int64_t>(total) : std::min(most, static_cast<int64_t>(total));
}

}  // namespace

absl::StatusOr<Device> OpenCuda(const CudaOptions& options) {
  absl::StatusOr<int> count = Devices();
  if (!count.ok()) return count.status();
  if (options.index < 0 || options.index >= *count) {
    return absl::NotFoundError(absl::StrCat("there is no cuda:", options.index,
                                            ": this process sees ", *count,
                                            *count == 1 ? " device" : " devices"));
  }
  if (options.memory_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("memory_bytes is ", options.memory_bytes));
  }
  absl::StatusOr<cuda::DeviceProperties> properties = PropertiesOf(options.index, options.tf32);
  if (!properties.ok()) return properties.status();
  absl::StatusOr<int64_t> memory = MemoryOf(options.index, options.memory_bytes);
  if (!memory.ok()) return memory.status();
  absl::StatusOr<std::unique_ptr<AddressRange>> range = cuda::MakeRange(options.index, *memory);
  if (!range.ok()) return range.status();
  try {
    const char* const begin = (*range)->base();
    auto backend =
        std::make_unique<cuda::Backend>(*std::move(properties), begin, begin + (*range)->bytes());
    return Device::Of({DeviceKind::kCuda, options.index}, *std::move(range), std::move(backend));
  } catch (const Error& error) {
    return error.status();
  }
}

int CountCudaDevices(std::string* why) {
  const absl::StatusOr<int> count = Devices();
  if (count.ok()) return *count;
  if (why != nullptr) *why = std::string(count.status().message());
  return 0;
}

}  // namespace sherd
