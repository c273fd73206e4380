#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Arithmetic with NumPy's broadcasting.
//
// Shapes: dimensions are matched from the innermost outwards; an extent of 1, or a missing one, is
//   repeated to the other's. The gradient of an operand is summed over what it was repeated in.
//   Any strides.
// Dtypes: one float dtype. 16-bit is computed in f32 and rounded once; sums of gradients are f32.
// Cost: equal shapes keep nothing for Add and Sub, and add no pass. A repeated operand costs one
//   temporary of the result's size in backward of Mul and Div.
// Errors: kInvalidArgument naming both operands if shapes, dtypes or devices do not fit.

// a + b
Variable Add(const Variable& a, const Variable& b, CallSite site = CallSite::Here());
// a - b
Variable Sub(const Variable& a, const Variable& b, CallSite site = CallSite::Here());
// a * b
Variable Mul(const Variable& a, const Variable& b, CallSite site = CallSite::Here());
// a / b. Division by zero gives what IEEE 754 says.
Variable Div(const Variable& a, const Variable& b, CallSite site = CallSite::Here());

// -x
Variable Neg(const Variable& x, CallSite site = CallSite::Here());
// x * x
Variable Square(const Variable& x, CallSite site = CallSite::Here());
// x to a constant power, as std::pow: NaN for a negative x and a fractional exponent. The gradient
// is exponent x^(exponent - 1), and 0 for exponent 0. Computed in f64 element by element.
Variable Pow(const Variable& x, double exponent, CallSite site = CallSite::Here());

}  // namespace sherd
