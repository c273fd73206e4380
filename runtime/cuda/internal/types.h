#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/dtype.h"

// Element types and the scalar functions of kernels/internal, in device code. For .cu files.
//
// What computes an element is the same source as on the CPU: functions of sherd::kernels::cuda_math
// (functions.h, math.h, erf.h of kernels/internal), compiled for both.
#ifndef SHERD_HOST_DEVICE
#define SHERD_HOST_DEVICE __host__ __device__
#endif
#define SHERD_ISA cuda_math
#include "sherd/runtime/kernels/internal/functions.h"
#undef SHERD_ISA

namespace sherd::cuda {

namespace math = kernels::cuda_math;

// The type a stored type is computed in: double for double, else float.
template <typename T>
struct ComputeType {
  using Type = float;
};
template <>
struct ComputeType<double> {
  using Type = double;
};
template <typename T>
using Compute = typename ComputeType<T>::Type;

__device__ inline float Widen(float x) { return x; }
__device__ inline double Widen(double x) { return x; }
__device__ inline float Widen(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
// As Float16 in core/dtype.h, which says why.
__device__ inline float Widen(Float16 x) {
  const uint32_t magnitude = (x.bits & 0x7fffu) << 13;
  const float subnormal = __uint_as_float(magnitude + 0x38800000u) - 0x1p-14f;
  const uint32_t normal = magnitude + (magnitude < 0x0f800000u ? 0x38000000u : 0x70000000u);
  const uint32_t wide = magnitude < 0x800000u ? __float_as_uint(subnormal) : normal;
  return __uint_as_float((x.bits & 0x8000u) << 16 | wide);
}

// Rounds a computed value to the stored type: to nearest, ties to even; NaN stays NaN.
template <typename T>
struct Rounder {
  template <typename C>
  __device__ static T Round(C x) {
    return static_cast<T>(x);
  }
};
template <>
struct Rounder<BFloat16> {
  __device__ static BFloat16 Round(float x) {
    const uint32_t u = __float_as_uint(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40u;
    BFloat16 out;
    out.bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    return out;
  }
  __device__ static BFloat16 Round(double x) { return Round(static_cast<float>(x)); }
};
template <>
struct Rounder<Float16> {
  __device__ static Float16 Round(float x) {
    const uint32_t u = __float_as_uint(x);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t rounded = magnitude < 0x47800000u ? finite : 0x7c00u;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    Float16 out;
    out.bits =
        static_cast<uint16_t>((u >> 16 & 0x8000u) | (magnitude > 0x7f800000u ? nan : rounded));
    return out;
  }
  __device__ static Float16 Round(double x) { return Round(static_cast<float>(x)); }
};

// out (+)= value, in the stored type T.
template <bool kAdd, typename T, typename C>
__device__ inline void Put(T* out, C value) {
  *out = Rounder<T>::Round(kAdd ? static_cast<C>(Widen(*out)) + value : value);
}

// N elements that are loaded and stored at once, 16 bytes of them where N is kPackOf<T>.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <typename T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

// Calls f(T{}) for the C++ type of a float dtype.
template <typename F>
void WithFloat(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF64:
      return f(double{});
    case DType::kBF16:
      return f(BFloat16{});
    case DType::kF16:
      return f(Float16{});
    default:
      SHERD_CHECK(false, "a kernel was given a dtype that is no float");
  }
}

// Calls f(int32_t{}) or f(int64_t{}).
template <typename F>
void WithIndex(DType dtype, const F& f) {
  SHERD_CHECK(dtype == DType::kI32 || dtype == DType::kI64, "indices are no integers");
  dtype == DType::kI32 ? f(int32_t{}) : f(int64_t{});
}

// Calls f(std::true_type{}) or f(std::false_type{}).
template <typename F>
void WithBool(bool value, const F& f) {
  value ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace sherd::cuda
