#pragma once

#include "sherd/runtime/kernels/internal/isa_types.h"

// Loops over runs of adjacent elements, for functions given as classes with a static Of.
namespace sherd::kernels::SHERD_ISA {

template <typename F, bool kAdd, typename T>
static void BinaryRun(const T* a, const T* b, T* out, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) Put<kAdd>(out + i, F::Of(Widen(a[i]), Widen(b[i])));
}

template <typename F, typename T>
static void Binary(const void* a, const void* b, void* out, int64_t n, bool add) {
  const T* const x = static_cast<const T*>(a);
  const T* const y = static_cast<const T*>(b);
  T* const to = static_cast<T*>(out);
  add ? BinaryRun<F, true>(x, y, to, n) : BinaryRun<F, false>(x, y, to, n);
}

template <typename F, bool kAdd, typename T>
static void UnaryRun(const T* x, T* out, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) Put<kAdd>(out + i, F::Of(Widen(x[i])));
}

template <typename F, typename T>
static void Unary(const void* x, void* out, int64_t n, bool add) {
  const T* const from = static_cast<const T*>(x);
  T* const to = static_cast<T*>(out);
  add ? UnaryRun<F, true>(from, to, n) : UnaryRun<F, false>(from, to, n);
}

}  // namespace sherd::kernels::SHERD_ISA
