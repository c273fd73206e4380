#pragma once

#include <cstdint>

// Element types and vectors for the loop files; see [Note: what a loop file may use] in loops.h.
#ifndef SHERD_ISA
#error "a loop file is compiled with SHERD_ISA set to the namespace of its instruction set"
#endif
#ifndef SHERD_VECTOR_BYTES
#define SHERD_VECTOR_BYTES 16
#endif

#define SHERD_RESTRICT __restrict__
#define SHERD_INLINE static inline __attribute__((always_inline))
// Iterations do not depend on each other, even where two pointers are equal.
#define SHERD_SIMD _Pragma("omp simd")

namespace sherd::kernels::SHERD_ISA {

// The bits of a BFloat16.
struct Bf16 {
  uint16_t bits;
};

// The bits of a Float16.
struct F16 {
  uint16_t bits;
};

// The type a stored type is computed in.
template <typename T>
struct ComputeType {
  using Type = T;
};
template <>
struct ComputeType<Bf16> {
  using Type = float;
};
template <>
struct ComputeType<F16> {
  using Type = float;
};
template <typename T>
using Compute = typename ComputeType<T>::Type;

template <typename To, typename From>
SHERD_INLINE To BitCast(From from) {
  return __builtin_bit_cast(To, from);
}

SHERD_INLINE float Widen(float x) { return x; }
SHERD_INLINE double Widen(double x) { return x; }
SHERD_INLINE float Widen(Bf16 x) { return BitCast<float>(static_cast<uint32_t>(x.bits) << 16); }
// As Float16 in core/dtype.h, which says why.
SHERD_INLINE float Widen(F16 x) {
  const uint32_t magnitude = (x.bits & 0x7fffu) << 13;
  const float subnormal = BitCast<float>(magnitude + 0x38800000u) - 0x1p-14f;
  const uint32_t normal = magnitude + (magnitude < 0x0f800000u ? 0x38000000u : 0x70000000u);
  const uint32_t wide = magnitude < 0x800000u ? BitCast<uint32_t>(subnormal) : normal;
  return BitCast<float>((x.bits & 0x8000u) << 16 | wide);
}

// Rounds a computed value to the stored type: to nearest, ties to even; NaN stays NaN.
template <typename T>
struct Rounder {
  template <typename C>
  SHERD_INLINE T Round(C x) {
    return static_cast<T>(x);
  }
};
template <>
struct Rounder<Bf16> {
  SHERD_INLINE Bf16 Round(float x) {
    const uint32_t u = BitCast<uint32_t>(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40u;
    return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
  }
  SHERD_INLINE Bf16 Round(double x) { return Round(static_cast<float>(x)); }
};
template <>
struct Rounder<F16> {
  SHERD_INLINE F16 Round(float x) {
    const uint32_t u = BitCast<uint32_t>(x);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t rounded = magnitude < 0x47800000u ? finite : 0x7c00u;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    const uint32_t bits = magnitude > 0x7f800000u ? nan : rounded;
    return {static_cast<uint16_t>((u >> 16 & 0x8000u) | bits)};
  }
  SHERD_INLINE F16 Round(double x) { return Round(static_cast<float>(x)); }
};

// out (+)= value, in the stored type T.
template <bool kAdd, typename T, typename C>
SHERD_INLINE void Put(T* out, C value) {
  *out = Rounder<T>::Round(kAdd ? static_cast<C>(Widen(*out)) + value : value);
}

inline constexpr int64_t kVectorBytes = SHERD_VECTOR_BYTES;
template <typename C>
inline constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(C));

// A vector of kLanes<C> elements, at any address.
template <typename C>
struct VectorType {
  typedef C Type __attribute__((vector_size(SHERD_VECTOR_BYTES), aligned(sizeof(C)), may_alias));
};
template <typename C>
using Vector = typename VectorType<C>::Type;

template <typename C>
SHERD_INLINE Vector<C> LoadVector(const C* p) {
  return *reinterpret_cast<const Vector<C>*>(p);
}
template <typename C>
SHERD_INLINE void StoreVector(C* p, Vector<C> v) {
  *reinterpret_cast<Vector<C>*>(p) = v;
}

SHERD_INLINE int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
SHERD_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
SHERD_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace sherd::kernels::SHERD_ISA

// The f32, f64, bf16 and f16 instances of a loop template, for a table. Further template arguments,
// each followed by SHERD_COMMA, go before the element type.
#define SHERD_FLOATS(loop, ...)                                                \
  {                                                                            \
    loop<__VA_ARGS__ float>, loop<__VA_ARGS__ double>, loop<__VA_ARGS__ Bf16>, \
        loop<__VA_ARGS__ F16>                                                  \
  }
#define SHERD_COMMA ,
