#include "llm/models/elements.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "sherd/runtime/kernels/elementwise.h"

namespace llm {
namespace {

using sherd::BFloat16;
using sherd::DType;
using sherd::Float16;
using sherd::Tensor;

// Calls `body` with a value of the dtype's type.
template <typename Body>
void WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF64:
      return body(double{});
    case DType::kBF16:
      return body(BFloat16{});
    case DType::kF16:
      return body(Float16{});
    default:
      return body(float{});
  }
}

template <typename To, typename From>
To Converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, double>) {
    if constexpr (std::is_same_v<From, float>) return value;
    return static_cast<double>(static_cast<float>(value));
  } else {
    const auto narrow = static_cast<float>(value);
    if constexpr (std::is_same_v<To, float>) return narrow;
    return To(narrow);
  }
}

template <typename From, typename To>
void CopyAs(const uint8_t* from, const Transposition& t, int64_t begin, int64_t end, uint8_t* out) {
  if (std::is_same_v<From, To> && t.inner == 0) {
    std::memcpy(out, from + begin * static_cast<int64_t>(sizeof(From)),
                static_cast<size_t>(end - begin) * sizeof(From));
    return;
  }
  for (int64_t e = begin; e < end; ++e, out += sizeof(To)) {
    const int64_t at = t.inner > 0 ? (e % t.inner) * t.outer + e / t.inner : e;
    From value;
    std::memcpy(&value, from + at * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To converted = Converted<To>(value);
    std::memcpy(out, &converted, sizeof(To));
  }
}

bool IsOnHost(const Tensor& tensor) { return tensor.device().id().kind == sherd::DeviceKind::kCpu; }

}  // namespace

void CopyElements(const Elements& from, const Transposition& transposition, int64_t begin,
                  int64_t end, DType to, uint8_t* out) {
  WithType(from.dtype, [&](auto source) {
    WithType(to, [&](auto target) {
      CopyAs<decltype(source), decltype(target)>(from.bytes, transposition, begin, end, out);
    });
  });
}

void Upload(std::span<const uint8_t> bytes, const Tensor& to, int64_t begin) {
  if (bytes.empty()) return;
  const int64_t size = SizeOf(to.dtype());
  const auto count = static_cast<int64_t>(bytes.size()) / size;
  if (IsOnHost(to)) {
    std::memcpy(static_cast<uint8_t*>(to.raw()) + begin * size, bytes.data(), bytes.size());
    return;
  }
  WithType(to.dtype(), [&](auto type) {
    using T = decltype(type);
    std::vector<T> values(static_cast<size_t>(count));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    sherd::kernels::Copy(Tensor::FromHost<T>(to.device(), values, {count}),
                         to.Slice(0, begin, begin + count));
  });
}

const uint8_t* OnHost(const Tensor& tensor, std::vector<uint8_t>& memory) {
  if (IsOnHost(tensor)) return static_cast<const uint8_t*>(tensor.raw());
  WithType(tensor.dtype(), [&](auto type) {
    const auto values = tensor.ToHost<decltype(type)>();
    memory.resize(static_cast<size_t>(tensor.bytes()));
    std::memcpy(memory.data(), values.data(), memory.size());
  });
  return memory.data();
}

}  // namespace llm
