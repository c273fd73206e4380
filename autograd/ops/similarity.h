#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// x / max(|x|, eps), |x| the Euclidean norm over the last dimension.
//
// Below eps x is only scaled, and so is its gradient.
// Shapes: x [..., C] and result; any strides. Cost: keeps x and one number for each row.
// Errors: kInvalidArgument naming x if it has no dimension, or for eps < 0.
Variable L2Normalize(const Variable& x, double eps = 1e-12, CallSite site = CallSite::Here());

// The cosine of the angle of rows: a b / (max(|a|, eps) max(|b|, eps)) over the last dimension.
//
// Shapes: a and b [..., C] repeat to one shape by NumPy's rules; result without the last dimension.
// Dtypes: one float dtype; 16-bit rounds the normalised rows and their products.
// Errors: kInvalidArgument naming both operands if they do not fit.
Variable CosineSimilarity(const Variable& a, const Variable& b, double eps = 1e-8,
                          CallSite site = CallSite::Here());

}  // namespace sherd
