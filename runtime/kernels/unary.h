#pragma once

#include <cstdint>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Functions of one variable, element by element.
//
// Shapes and dtypes: as elementwise.h: one shape, any strides, one float dtype, bf16 and f16
// through
//   f32. NaN gives NaN, and so does an argument outside of a function's domain.
namespace sherd::kernels {

// Errors in f32 and f64, in units of the last place; results are subnormal where they should be,
// unless said otherwise.
enum class UnaryFunction : uint8_t {
  kExp,      // 1
  kLog,      // 1; -infinity at 0
  kTanh,     // 3
  kSigmoid,  // 1 / (1 + e^-x): 3; 0 below -88 (-709)
  kRelu,     // max(x, 0)
  kSqrt,
  kRsqrt,     // 1 / sqrt(x): 1; infinity at 0
  kErf,       // 2
  kGelu,      // x Phi(x), Phi the normal distribution: 6, down to 0. NaN at -infinity
  kGeluTanh,  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). NaN at -infinity
};

// Whether UnaryBackward computes the derivative from the function's value, not from its argument:
// the one that a net mostly keeps anyway, and never more exact than that is stored.
constexpr bool SlopeReadsValue(UnaryFunction function) {
  return function != UnaryFunction::kLog && function < UnaryFunction::kErf;
}

// out = f(x). REQUIRES: out is x or overlaps it nowhere.
void Unary(UnaryFunction function, const Tensor& x, const Tensor& out);

// grad_x (+)= grad * f'(x). `saved` is f(x) where SlopeReadsValue, else x.
//
// The derivative of relu is 0 at 0. REQUIRES: grad_x is one of the inputs or overlaps none.
void UnaryBackward(UnaryFunction function, const Tensor& grad, const Tensor& saved,
                   const Tensor& grad_x, Write write = Write::kOverwrite);

// out = min(max(x, low), high), the bounds rounded to the dtype first. Infinite bounds bound
// nothing.
void Clamp(const Tensor& x, double low, double high, const Tensor& out);

// grad_x (+)= grad where low <= x <= high, else 0 (0 for NaN too).
void ClampBackward(const Tensor& grad, const Tensor& x, double low, double high,
                   const Tensor& grad_x, Write write = Write::kOverwrite);

}  // namespace sherd::kernels
