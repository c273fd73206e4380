#include <cstring>
#include <utility>
#include <vector>

#include "machine.h"
#include "stream.h"

namespace emulated {
namespace {

// A kind that agrees with where the memory is.
cudaError_t Classify(const void* dst, size_t dst_size, const void* src, size_t src_size,
                     cudaMemcpyKind* kind) {
  bool to_device = false;
  bool from_device = false;
  const Machine& machine = Machine::Get();
  if (cudaError_t error = machine.Locate(dst, dst_size, &to_device)) return error;
  if (cudaError_t error = machine.Locate(src, src_size, &from_device)) return error;
  const auto found = static_cast<cudaMemcpyKind>(2 * from_device + to_device);
  if (*kind == cudaMemcpyDefault) *kind = found;
  return *kind == found ? cudaSuccess : cudaErrorInvalidValue;
}

void CountCopy(cudaMemcpyKind kind, size_t bytes) {
  Count(Machine::Get().counts.copies[kind]);
  Count(Machine::Get().counts.copy_bytes[kind], static_cast<int64_t>(bytes));
}

}  // namespace
}  // namespace emulated

using emulated::Machine;
using emulated::Remember;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t size) {
  const int device = emulated::CurrentDevice();
  if (cudaError_t error = Machine::Get().Check(device)) return Remember(error);
  return Remember(Machine::Get().AllocateDevice(device, size, pointer));
}

cudaError_t cudaFree(void* pointer) {
  const int device = emulated::CurrentDevice();
  if (cudaError_t error = Machine::Get().Check(device)) return Remember(error);
  if (pointer != nullptr) emulated::WaitForDevice(device);  // as CUDA does
  return Remember(Machine::Get().FreeDevice(pointer));
}

cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  return Remember(Machine::Get().AllocateHost(size, pointer));
}

cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return cudaHostAlloc(pointer, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) { return Remember(Machine::Get().FreeHost(pointer)); }

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return Remember(Machine::Get().IsHostPinned(host) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  *attributes = cudaPointerAttributes{};
  bool on_device = false;
  if (Machine::Get().Locate(pointer, 1, &on_device) != cudaSuccess) return cudaSuccess;
  const bool pinned = !on_device && Machine::Get().IsHostPinned(pointer);
  if (!on_device && !pinned) return cudaSuccess;
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = Machine::Get().DeviceOf(pointer);
  attributes->devicePointer = const_cast<void*>(pointer);
  if (pinned) attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const int device = emulated::CurrentDevice();
  if (cudaError_t error = Machine::Get().Check(device)) return Remember(error);
  const int64_t bytes = Machine::Get().options().memory_bytes;
  *total = static_cast<size_t>(bytes);
  *free = static_cast<size_t>(bytes - emulated::UsedBytes(device));
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  CUstream_st* of = nullptr;
  if (cudaError_t error = emulated::StreamOf(stream, &of)) return Remember(error);
  if (width > dpitch || width > spitch) return Remember(cudaErrorInvalidPitchValue);
  if (width == 0 || height == 0) return cudaSuccess;
  const size_t dst_bytes = (height - 1) * dpitch + width;
  const size_t src_bytes = (height - 1) * spitch + width;
  if (cudaError_t error = emulated::Classify(dst, dst_bytes, src, src_bytes, &kind)) {
    return Remember(error);
  }
  emulated::CountCopy(kind, width * height);
  std::vector<char> staged;
  if (kind == cudaMemcpyHostToDevice && !Machine::Get().IsHostPinned(src)) {
    const char* bytes = static_cast<const char*>(src);
    staged.assign(bytes, bytes + src_bytes);
  }
  of->Push([=, staged = std::move(staged)] {
    const char* from = staged.empty() ? static_cast<const char*>(src) : staged.data();
    for (size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(dst) + row * dpitch, from + row * spitch, width);
    }
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(dst, count, src, count, count, 1, kind, stream);
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  if (cudaError_t error = cudaMemcpyAsync(dst, src, count, kind, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t count, cudaStream_t stream) {
  CUstream_st* of = nullptr;
  if (cudaError_t error = emulated::StreamOf(stream, &of)) return Remember(error);
  if (count == 0) return cudaSuccess;
  bool on_device = false;
  cudaError_t error = Machine::Get().Locate(pointer, count, &on_device);
  if (error == cudaSuccess && !on_device && !Machine::Get().IsHostPinned(pointer)) {
    error = cudaErrorInvalidValue;
  }
  if (error != cudaSuccess) return Remember(error);
  emulated::Count(Machine::Get().counts.sets);
  of->Push([=] { std::memset(pointer, value, count); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t count) {
  if (cudaError_t error = cudaMemsetAsync(pointer, value, count, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

}  // extern "C"
