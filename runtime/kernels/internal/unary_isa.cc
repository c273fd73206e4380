#include "sherd/runtime/kernels/internal/functions.h"
#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/runs.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

template <typename T>
void ClampRun(const void* x, double low, double high, void* out, int64_t n) {
  using C = Compute<T>;
  const T* const from = static_cast<const T*>(x);
  T* const to = static_cast<T*>(out);
  const C least = static_cast<C>(low), most = static_cast<C>(high);
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    Put<false>(to + i, Clamp(Widen(from[i]), least, most));
  }
}

template <bool kAdd, typename T>
void ClampGradient(const T* grad, const T* x, Compute<T> low, Compute<T> high, T* out, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    Put<kAdd>(out + i, ClampGradientOf(Widen(grad[i]), Widen(x[i]), low, high));
  }
}

template <typename T>
void ClampBackward(const void* grad, const void* x, double low, double high, void* out, int64_t n,
                   bool add) {
  using C = Compute<T>;
  const T* const g = static_cast<const T*>(grad);
  const T* const from = static_cast<const T*>(x);
  T* const to = static_cast<T*>(out);
  const C least = static_cast<C>(low), most = static_cast<C>(high);
  add ? ClampGradient<true>(g, from, least, most, to, n)
      : ClampGradient<false>(g, from, least, most, to, n);
}

}  // namespace

#define SHERD_LOOPS(name) \
  { SHERD_FLOATS(Unary, name SHERD_COMMA), SHERD_FLOATS(Binary, name##Backward SHERD_COMMA) }

extern const internal::UnaryLoops kUnaryLoops;
const internal::UnaryLoops kUnaryLoops = {
    .exp = SHERD_LOOPS(ExpFn),
    .log = SHERD_LOOPS(LogFn),
    .tanh = SHERD_LOOPS(TanhFn),
    .sigmoid = SHERD_LOOPS(SigmoidFn),
    .relu = SHERD_LOOPS(ReluFn),
    .sqrt = SHERD_LOOPS(SqrtFn),
    .rsqrt = SHERD_LOOPS(RsqrtFn),
    .erf = SHERD_LOOPS(ErfFn),
    .gelu = SHERD_LOOPS(GeluFn),
    .gelu_tanh = SHERD_LOOPS(GeluTanhFn),
    .clamp = SHERD_FLOATS(ClampRun),
    .clamp_backward = SHERD_FLOATS(ClampBackward),
};

}  // namespace sherd::kernels::SHERD_ISA
