#pragma once

#include <cstdint>
#include <optional>

#include "sherd/runtime/core/tensor.h"

namespace sherd {

// The binary interface of DLPack 1.x, by which array libraries hand tensors to each other.
//
// Declared here so that nothing has to be installed: a pointer to a struct of the same layout from
// elsewhere (DLManagedTensor, DLManagedTensorVersioned) may be cast to these.
// Source: dmlc/dlpack, include/dlpack/dlpack.h, version 1.0.
namespace dlpack {

inline constexpr int32_t kCpu = 1;  // DLDeviceType of host memory

// DLDataTypeCode.
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUInt = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBfloat = 4;

// Bits of ManagedVersioned::flags.
inline constexpr uint64_t kReadOnly = 1;
inline constexpr uint64_t kIsCopied = 2;

// DLPackVersion. Another `major` means another layout of all that follows `deleter`.
struct Version {
  uint32_t major = 1;
  uint32_t minor = 0;
};

// DLDevice.
struct Device {
  int32_t type = kCpu;
  int32_t id = 0;
};

// DLDataType: `lanes` is 1 but for vector types.
struct DataType {
  uint8_t code = kFloat;
  uint8_t bits = 32;
  uint16_t lanes = 1;
};

// DLTensor. Strides are in elements; a null pointer means row-major order without gaps. The first
// element is `byte_offset` after `data`.
struct Array {
  void* data = nullptr;
  Device device;
  int32_t ndim = 0;
  DataType dtype;
  int64_t* shape = nullptr;
  int64_t* strides = nullptr;
  uint64_t byte_offset = 0;
};

// DLManagedTensor, what a capsule "dltensor" holds. Who is done with it calls the deleter, once;
// a null deleter means there is nothing to be done.
struct Managed {
  Array array;
  void* context = nullptr;
  void (*deleter)(Managed* self) = nullptr;
};

// DLManagedTensorVersioned, what a capsule "dltensor_versioned" holds.
struct ManagedVersioned {
  Version version;
  void* context = nullptr;
  void (*deleter)(ManagedVersioned* self) = nullptr;
  uint64_t flags = 0;
  Array array;
};

}  // namespace dlpack

struct DlpackOptions {
  // The stream on which the consumer (on export) or the producer (on import) uses the memory, as
  // in Python's __dlpack__(stream=...). Devices with streams are ordered by it; host memory has
  // none, and a value is refused.
  std::optional<int64_t> stream = std::nullopt;
  // Import: takes memory that the producer marks read-only; the caller promises not to write it.
  bool accept_read_only = false;
};

// Hands a tensor to another library, without a copy: whoever writes is seen by the other.
//
// Shapes: any, any strides. Ownership: the caller's, who calls `deleter`; until then the memory
//   stays. Threads: the deleter may run on any.
// Errors: kInvalidArgument for an undefined tensor or a stream; kFailedPrecondition for one that is
//   absent, or whose memory comes and goes (gathered parameters of a unit): copy that.
dlpack::ManagedVersioned* ToDlpack(const Tensor& tensor, const DlpackOptions& options = {});
// The same for consumers from before version 1.0.
dlpack::Managed* ToDlpackUnversioned(const Tensor& tensor, const DlpackOptions& options = {});

// Takes a tensor from another library, without a copy.
//
// `device` is where it will be used: host memory belongs to any CPU device.
// Ownership: of `managed`, from now on, unless an error is thrown: then it stays the caller's. Its
//   deleter runs when the last view is gone, on whatever thread that is.
// Errors: kInvalidArgument, naming it, for another major version, a device other than `device`, an
//   element type there is no DType for, a negative stride, more than Shape::kMaxRank dimensions, or
//   a stream; kFailedPrecondition for read-only memory, see DlpackOptions.
Tensor FromDlpack(const Device& device, dlpack::ManagedVersioned* managed,
                  const DlpackOptions& options = {});
Tensor FromDlpack(const Device& device, dlpack::Managed* managed,
                  const DlpackOptions& options = {});

}  // namespace sherd
