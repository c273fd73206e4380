#pragma once

#include "sherd/runtime/core/tensor.h"

// Reductions of a whole tensor to one number.
//
// Accumulated in f64 in an order that is fixed by the shape alone, so a rerun and another number of
// threads give the same bits. NaN and infinities propagate; an empty tensor gives 0. Any strides.
// REQUIRES: a float dtype.
namespace sherd::kernels {

double Sum(const Tensor& x);

// The sum of magnitudes: the L1 norm.
double SumAbs(const Tensor& x);

// The sum of squares: the square of the L2 norm.
double SumSquares(const Tensor& x);

// The largest magnitude; NaN if any element is NaN.
double MaxAbs(const Tensor& x);

}  // namespace sherd::kernels
