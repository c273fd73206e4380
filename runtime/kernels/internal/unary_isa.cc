#include "sherd/runtime/kernels/internal/erf.h"
#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/math.h"
#include "sherd/runtime/kernels/internal/runs.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

SHERD_INLINE float Root(float x) { return __builtin_sqrtf(x); }
SHERD_INLINE double Root(double x) { return __builtin_sqrt(x); }

// Class `name` with Of(v) = value and, in `name`Backward, Of(g, v) = g times the slope.
#define SHERD_FUNCTION(name, value, slope) \
  struct name {                            \
    template <typename C>                  \
    SHERD_INLINE C Of(C v) {               \
      return value;                        \
    }                                      \
  };                                       \
  struct name##Backward {                  \
    template <typename C>                  \
    SHERD_INLINE C Of(C g, C v) {          \
      return g * (slope);                  \
    }                                      \
  };

// In the slopes v is the function's value where SlopeReadsValue says so, else its argument.
SHERD_FUNCTION(ExpFn, ExpOfAny(v), v)
SHERD_FUNCTION(LogFn, Log(v), C(1) / v)
SHERD_FUNCTION(TanhFn, Tanh(v), C(1) - v * v)
SHERD_FUNCTION(SigmoidFn, Sigmoid(v), v - v * v)
SHERD_FUNCTION(SqrtFn, Root(v), C(0.5) / v)
SHERD_FUNCTION(RsqrtFn, C(1) / Root(v), C(-0.5) * v * v * v)
SHERD_FUNCTION(ErfFn, Erf(v), ErfSlope(v))
SHERD_FUNCTION(GeluFn, Gelu(v), GeluSlope(v))
SHERD_FUNCTION(GeluTanhFn, GeluTanh(v), GeluTanhSlope(v))
#undef SHERD_FUNCTION

struct ReluFn {
  template <typename C>
  SHERD_INLINE C Of(C x) {
    return x < C(0) ? C(0) : x;
  }
};
struct ReluFnBackward {
  // Not a product: an infinite gradient times 0 is no 0.
  template <typename C>
  SHERD_INLINE C Of(C g, C y) {
    return y <= C(0) ? C(0) : g;
  }
};

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
  using C = Compute<T>;
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    const C value = Widen(x[i]);
    const C above = value >= low ? Widen(grad[i]) : C(0);
    Put<kAdd>(out + i, value <= high ? above : C(0));
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
