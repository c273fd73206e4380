#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

template <typename T>
double Sum(const void* data, int64_t n) {
  const T* const x = static_cast<const T*>(data);
  double sum = 0.0;
  _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(Widen(x[i]));
  }
  return sum;
}

template <typename T>
double SumAbs(const void* data, int64_t n) {
  const T* const x = static_cast<const T*>(data);
  double sum = 0.0;
  _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < n; ++i) {
    sum += __builtin_fabs(static_cast<double>(Widen(x[i])));
  }
  return sum;
}

template <typename T>
double SumSquares(const void* data, int64_t n) {
  const T* const x = static_cast<const T*>(data);
  double sum = 0.0;
  _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(Widen(x[i]));
    sum += value * value;
  }
  return sum;
}

// Without their sign, floats are ordered as their bits are, and NaN is above infinity.
template <typename T, typename Bits>
Bits MaxMagnitude(const T* x, int64_t n, Bits mask) {
  Bits most = 0;
  _Pragma("omp simd reduction(max:most)") for (int64_t i = 0; i < n; ++i) {
    const Bits bits = BitCast<Bits>(Widen(x[i])) & mask;
    most = bits > most ? bits : most;
  }
  return most;
}

template <typename T>
double MaxAbs(const void* data, int64_t n) {
  const T* const x = static_cast<const T*>(data);
  if constexpr (sizeof(Compute<T>) == 8) {
    return BitCast<double>(MaxMagnitude<T, int64_t>(x, n, 0x7fffffffffffffff));
  } else {
    return static_cast<double>(BitCast<float>(MaxMagnitude<T, int32_t>(x, n, 0x7fffffff)));
  }
}

}  // namespace

extern const internal::ReduceLoops kReduceLoops;
const internal::ReduceLoops kReduceLoops = {
    .sum = SHERD_FLOATS(Sum),
    .sum_abs = SHERD_FLOATS(SumAbs),
    .sum_squares = SHERD_FLOATS(SumSquares),
    .max_abs = SHERD_FLOATS(MaxAbs),
};

}  // namespace sherd::kernels::SHERD_ISA
