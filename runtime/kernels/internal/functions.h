#pragma once

#include "sherd/runtime/kernels/internal/erf.h"
#include "sherd/runtime/kernels/internal/math.h"

// What elementwise kernels compute of one element, for the CPU loops and for CUDA alike, as math.h.
//
// Each is a class with a static Of, so that loops can be written once for all of them.
namespace sherd::kernels::SHERD_ISA {

SHERD_MATH float Root(float x) { return __builtin_sqrtf(x); }
SHERD_MATH double Root(double x) { return __builtin_sqrt(x); }

struct AddOf {
  template <typename C>
  SHERD_MATH C Of(C a, C b) {
    return a + b;
  }
};
struct SubOf {
  template <typename C>
  SHERD_MATH C Of(C a, C b) {
    return a - b;
  }
};
struct MulOf {
  template <typename C>
  SHERD_MATH C Of(C a, C b) {
    return a * b;
  }
};
struct DivOf {
  template <typename C>
  SHERD_MATH C Of(C a, C b) {
    return a / b;
  }
};

struct SiluOf {
  template <typename C>
  SHERD_MATH C Of(C x) {
    return Silu(x);
  }
};
struct SiluBackwardOf {
  template <typename C>
  SHERD_MATH C Of(C grad, C x) {
    return grad * SiluSlope(x);
  }
};
struct SiluMulOf {
  template <typename C>
  SHERD_MATH C Of(C gate, C up) {
    return Silu(gate) * up;
  }
};

// Both gradients of SiluMul, which share a sigmoid.
template <typename C>
struct SiluMulGradients {
  C gate, up;
};
template <typename C>
SHERD_MATH SiluMulGradients<C> SiluMulBackwardOf(C grad, C gate, C up) {
  const C s = Sigmoid(gate);
  return {grad * up * (s * (C(1) + gate * (C(1) - s))), grad * (gate * s)};
}

// Class `name` with Of(v) = value and, in `name`Backward, Of(g, v) = g times the slope. In the
// slopes v is the function's value where SlopeReadsValue says so, else its argument.
#define SHERD_FUNCTION(name, value, slope) \
  struct name {                            \
    template <typename C>                  \
    SHERD_MATH C Of(C v) {                 \
      return value;                        \
    }                                      \
  };                                       \
  struct name##Backward {                  \
    template <typename C>                  \
    SHERD_MATH C Of(C g, C v) {            \
      return g * (slope);                  \
    }                                      \
  };
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
  SHERD_MATH C Of(C x) {
    return x < C(0) ? C(0) : x;
  }
};
struct ReluFnBackward {
  // Not a product: an infinite gradient times 0 is no 0.
  template <typename C>
  SHERD_MATH C Of(C g, C y) {
    return y <= C(0) ? C(0) : g;
  }
};

// The gradient where low <= x <= high, else 0.
template <typename C>
SHERD_MATH C ClampGradientOf(C grad, C x, C low, C high) {
  const C above = x >= low ? grad : C(0);
  return x <= high ? above : C(0);
}

// x times `scale` if its random word says that it stays, else 0.
template <typename C>
SHERD_MATH C DropOf(C x, uint32_t word, uint32_t threshold, C scale) {
  const C value = x * scale;
  return word >= threshold ? value : C(0);
}

}  // namespace sherd::kernels::SHERD_ISA
