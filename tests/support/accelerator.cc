#include "tests/support/accelerator.h"

#include "sherd/runtime/cuda/cuda_device.h"

namespace sherd::testing {
namespace {

template <typename T>
Tensor HostCopy(const Device& cpu, const Tensor& x) {
  const std::vector<T> values = x.ToHost<T>();
  return Tensor::FromHost<T>(cpu, values, x.shape());
}

}  // namespace

Device Accelerator(std::string* why) {
  // Never destroyed: CUDA ends before the objects of a process do.
  static const auto* const device = new absl::StatusOr<Device>(OpenCuda({}));
  if (device->ok()) return **device;
  if (why != nullptr) *why = std::string(device->status().message());
  return Device();
}

Tensor MoveTo(const Device& device, const Tensor& x) {
  const Storage& from = *x.storage();
  Ref<Storage> to = MakeRef<Storage>(device, from.bytes(), MemoryCategory::kBuffer);
  to->Allocate();
  if (from.bytes() > 0) device.CopyFromHost(to->data(), from.data(), from.bytes());
  return Tensor::View(std::move(to), x.offset_elems(), x.dtype(), x.shape(), x.strides());
}

Tensor MoveToHost(const Device& cpu, const Tensor& x) {
  switch (x.dtype()) {
    case DType::kF32:
      return HostCopy<float>(cpu, x);
    case DType::kF64:
      return HostCopy<double>(cpu, x);
    case DType::kBF16:
      return HostCopy<BFloat16>(cpu, x);
    case DType::kF16:
      return HostCopy<Float16>(cpu, x);
    case DType::kI32:
      return HostCopy<int32_t>(cpu, x);
    case DType::kI64:
      return HostCopy<int64_t>(cpu, x);
  }
  return Tensor();
}

}  // namespace sherd::testing
