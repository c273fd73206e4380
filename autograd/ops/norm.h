#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, where the variance is
// the mean of (x - mean)^2.
//
// Shapes: x [..., C], any strides; weight and bias [C]. An empty Variable() as weight stands for
//   ones, as bias for zeros, without any memory.
// Dtypes: one float dtype; bf16 and f16 are computed in f32, statistics kept in f32 (f64 for f64).
// Cost: keeps x and two numbers a row; the weight only where x wants a gradient, x not where only
//   the bias does. Gradients of weight and bias are sums over rows in an order of the shape alone.
// Errors: kInvalidArgument naming x and the weight or bias that does not fit, or for eps below 0.
// Source: Ba, Kiros and Hinton 2016, "Layer Normalization".
Variable LayerNorm(const Variable& x, const Variable& weight, const Variable& bias,
                   double eps = 1e-5, CallSite site = CallSite::Here());

}  // namespace sherd
