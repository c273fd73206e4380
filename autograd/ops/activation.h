#pragma once

#include <cstdint>

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Functions of one variable, element by element; silu and silu_mul are in elementwise.h.
//
// Shapes: any, any strides; the result has that of x. Dtypes: any float; bf16 and f16 are computed
//   in f32 and rounded once.
// NaN gives NaN, and so does an x outside of a function's domain, without an error.
// Errors: kInvalidArgument for integers.
// Cost: keeps either x or the result, whichever the derivative is computed from; the comment of
// each
//   says which. A derivative from the result is as exact as the result's dtype.

enum class GeluKind : uint8_t {
  kExact,  // x Phi(x), Phi the normal distribution
  kTanh    // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), within 5e-4 of it
};

// The Gaussian error linear unit; keeps x. Source: Hendrycks and Gimpel 2016, "Gaussian Error
// Linear Units (GELUs)".
Variable Gelu(const Variable& x, GeluKind kind = GeluKind::kExact,
              CallSite site = CallSite::Here());
// max(x, 0), with the derivative 0 at 0; keeps the result.
Variable Relu(const Variable& x, CallSite site = CallSite::Here());
// 1 / (1 + e^-x); keeps the result.
Variable Sigmoid(const Variable& x, CallSite site = CallSite::Here());
// tanh x; keeps the result.
Variable Tanh(const Variable& x, CallSite site = CallSite::Here());
// The error function 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x; keeps x.
Variable Erf(const Variable& x, CallSite site = CallSite::Here());
// e^x; keeps the result.
Variable Exp(const Variable& x, CallSite site = CallSite::Here());
// The natural logarithm, -infinity at 0; keeps x.
Variable Log(const Variable& x, CallSite site = CallSite::Here());
// The square root, whose derivative at 0 is infinite; keeps the result.
Variable Sqrt(const Variable& x, CallSite site = CallSite::Here());
// 1 / sqrt(x); keeps the result.
Variable Rsqrt(const Variable& x, CallSite site = CallSite::Here());

// min(max(x, low), high). The gradient passes where low <= x <= high, bounds included; keeps x.
//
// The bounds are rounded to the dtype of x first. An infinite bound bounds nothing.
// Errors: kInvalidArgument unless low <= high.
Variable Clamp(const Variable& x, double low, double high, CallSite site = CallSite::Here());

}  // namespace sherd
