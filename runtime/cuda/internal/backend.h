#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>

#include "sherd/runtime/core/device.h"
#include "sherd/runtime/cuda/internal/fault.h"
#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/queue.h"

namespace sherd::cuda {

// What a kernel needs to know of a device to choose its grid.
struct DeviceProperties {
  int index = 0;
  int multiprocessors = 1;
  int64_t shared_bytes_per_block = 48 << 10;  // with cudaFuncAttributeMaxDynamicSharedMemorySize
  int capability = 0;                         // 90 for 9.0
  bool tf32 = false;                          // as CudaOptions has it
  std::string description;
};

class Backend final : public DeviceBackend {
 public:
  // `begin` and `end`: the addresses of the device's memory.
  Backend(DeviceProperties properties, const char* begin, const char* end);
  ~Backend() override;

  DeviceQueue& compute_queue() const override { return *compute_; }
  std::unique_ptr<DeviceQueue> MakeQueue(const std::string& name) const override;
  void Zero(void* to, int64_t bytes) const override;
  void Copy(void* to, const void* from, int64_t bytes) const override;
  void CopyFromHost(void* to, const void* from, int64_t bytes) const override;
  void CopyToHost(void* to, const void* from, int64_t bytes) const override;
  void CopyFromHostLater(void* to, const void* from, int64_t bytes) const override;
  void CopyToHostLater(void* to, const void* from, int64_t bytes) const override;
  std::shared_ptr<void> HostMemory(int64_t bytes) const override;
  bool Owns(const void* address) const override;
  const kernels::KernelBackend& kernels() const override { return kernels_; }
  std::string Describe() const override { return properties_.description; }

  const DeviceProperties& properties() const { return properties_; }
  // The stream of the calling thread's queue, with the device made current.
  cudaStream_t stream() const { return static_cast<Queue&>(queue()).Use(); }
  // Where kernels note what is wrong in their data, in device memory.
  Fault* fault() const { return fault_; }

 private:
  // Throws what kernels noted, and forgets it. REQUIRES: `fault` was just copied to the host.
  void ThrowIfFault(const Fault& fault) const;

  const DeviceProperties properties_;
  const char* const begin_;
  const char* const end_;
  const std::shared_ptr<EventPool> events_;
  const Kernels kernels_;
  std::unique_ptr<Queue> compute_;
  Fault* fault_ = nullptr;
};

// The backend of a device of OpenCuda.
inline const Backend& BackendOf(const Device& device) {
  return static_cast<const Backend&>(*device.backend());
}

}  // namespace sherd::cuda
