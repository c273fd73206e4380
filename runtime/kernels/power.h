#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Powers with a constant exponent, by the C++ library's pow in f64, rounded once: right to the last
// places rather than fast.
//
// Shapes: operands of a call have one shape and any strides. Dtypes: one float dtype.
namespace sherd::kernels {

// out = x^exponent
void Power(const Tensor& x, double exponent, const Tensor& out);

// grad_x (+)= grad exponent x^(exponent - 1); exponent 0 contributes 0 whatever x is.
void PowerBackward(const Tensor& grad, const Tensor& x, double exponent, const Tensor& grad_x,
                   Write write = Write::kOverwrite);

}  // namespace sherd::kernels
