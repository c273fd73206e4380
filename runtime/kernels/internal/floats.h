#pragma once

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/dtype.h"

// Element types for kernels that are compiled once: those whose time is not in arithmetic.
namespace sherd::kernels::internal {

inline double ToDouble(float x) { return static_cast<double>(x); }
inline double ToDouble(double x) { return x; }
inline double ToDouble(BFloat16 x) { return static_cast<double>(static_cast<float>(x)); }
inline double ToDouble(Float16 x) { return static_cast<double>(static_cast<float>(x)); }

// Rounds; through f32 for the 16-bit types, as all kernels do.
template <typename T>
T FromDouble(double x) {
  return T(static_cast<float>(x));
}
template <>
inline double FromDouble<double>(double x) {
  return x;
}

// The value that the dtype stores, so that a bound is equal to an element that is stored as it.
inline double RoundedTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kF32:
      return ToDouble(static_cast<float>(value));
    case DType::kBF16:
      return ToDouble(FromDouble<BFloat16>(value));
    case DType::kF16:
      return ToDouble(FromDouble<Float16>(value));
    default:
      return value;
  }
}

// Calls body(T()) with the element type of a float dtype.
template <typename Body>
void WithFloatType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float());
    case DType::kF64:
      return body(double());
    case DType::kBF16:
      return body(BFloat16());
    case DType::kF16:
      return body(Float16());
    default:
      SHERD_CHECK(false, "a kernel was given a dtype that is no float");
  }
}

}  // namespace sherd::kernels::internal
