// What the Python side of the DLPack test calls through ctypes: tensors out, tensors in.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/interop/dlpack.h"
#include "sherd/runtime/interop/external.h"

namespace {

struct Seen {
  int64_t ndim = 0;
  int64_t shape[sherd::Shape::kMaxRank] = {};
  int64_t dtype = 0;
};

template <typename M>
void Import(M* managed, bool accept_read_only, Seen* seen, double* values, double set_first) {
  const sherd::Device device = sherd::Device::Cpu();
  const sherd::Tensor tensor =
      sherd::FromDlpack(device, managed, {.accept_read_only = accept_read_only});
  seen->ndim = tensor.rank();
  for (int i = 0; i < tensor.rank(); ++i) seen->shape[i] = tensor.dim(i);
  seen->dtype = static_cast<int64_t>(tensor.dtype());
  const auto copy = [&](auto zero) {
    using T = decltype(zero);
    const std::vector<T> host = tensor.ToHost<T>();
    for (size_t i = 0; i < host.size(); ++i) {
      if constexpr (std::is_arithmetic_v<T>) {
        values[i] = static_cast<double>(host[i]);
      } else {
        values[i] = static_cast<double>(static_cast<float>(host[i]));
      }
    }
    if (set_first != 0.0 && tensor.numel() > 0) {
      if constexpr (std::is_arithmetic_v<T>) *tensor.data<T>() = static_cast<T>(set_first);
    }
  };
  switch (tensor.dtype()) {
    case sherd::DType::kF32:
      return copy(0.0f);
    case sherd::DType::kF64:
      return copy(0.0);
    case sherd::DType::kBF16:
      return copy(sherd::BFloat16());
    case sherd::DType::kF16:
      return copy(sherd::Float16());
    case sherd::DType::kI32:
      return copy(int32_t{0});
    case sherd::DType::kI64:
      return copy(int64_t{0});
  }
}

void Say(const absl::Status& status, char* text, int64_t bytes) {
  const std::string message(status.message());
  std::strncpy(text, message.c_str(), static_cast<size_t>(bytes - 1));
}

}  // namespace

extern "C" {

// [2, 3] of 0, 1, ... 5 in a dtype; `transposed`: seen as [3, 2] with strides. *released counts
// the times its memory was let go of.
void* ExportTensor(int32_t dtype, int32_t transposed, int32_t versioned, int64_t* released) {
  const sherd::Device device = sherd::Device::Cpu();
  const auto type = static_cast<sherd::DType>(dtype);
  auto* bytes = new char[64]();
  for (int i = 0; i < 6; ++i) {
    switch (type) {
      case sherd::DType::kF32:
        reinterpret_cast<float*>(bytes)[i] = static_cast<float>(i);
        break;
      case sherd::DType::kF64:
        reinterpret_cast<double*>(bytes)[i] = i;
        break;
      case sherd::DType::kBF16:
        reinterpret_cast<sherd::BFloat16*>(bytes)[i] = sherd::BFloat16(static_cast<float>(i));
        break;
      case sherd::DType::kF16:
        reinterpret_cast<sherd::Float16*>(bytes)[i] = sherd::Float16(static_cast<float>(i));
        break;
      case sherd::DType::kI32:
        reinterpret_cast<int32_t*>(bytes)[i] = i;
        break;
      case sherd::DType::kI64:
        reinterpret_cast<int64_t*>(bytes)[i] = i;
        break;
    }
  }
  sherd::Tensor tensor =
      sherd::WrapMemory(device, type, {2, 3}, std::shared_ptr<void>(bytes, [released](void* p) {
                          ++*released;
                          delete[] static_cast<char*>(p);
                        }));
  if (transposed != 0) tensor = tensor.Transpose(0, 1);
  if (versioned != 0) return sherd::ToDlpack(tensor);
  return sherd::ToDlpackUnversioned(tensor);
}

// Takes a capsule's pointer over; 0 and what was seen, or -1 and a text, and the pointer stays.
int32_t ImportTensor(void* managed, int32_t versioned, int32_t accept_read_only, Seen* seen,
                     double* values, double set_first, char* text, int64_t text_bytes) {
  const absl::Status status = sherd::StatusOf([&] {
    if (versioned != 0) {
      Import(static_cast<sherd::dlpack::ManagedVersioned*>(managed), accept_read_only != 0, seen,
             values, set_first);
    } else {
      Import(static_cast<sherd::dlpack::Managed*>(managed), accept_read_only != 0, seen, values,
             set_first);
    }
  });
  if (!status.ok()) Say(status, text, text_bytes);
  return status.ok() ? 0 : -1;
}

}  // extern "C"
