#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Softmax over the last dimension, and its logarithm.
//
// Shapes: x [..., C], any strides; the result has that of x. Dtypes: any float; bf16 and f16 are
//   computed in f32 and rounded once.
// Safe for any finite row. An element of -infinity, a masked one, has the probability 0 and the
// gradient 0; a row of nothing else has no distribution and gives NaN, as in PyTorch, and so do
// rows with +infinity or NaN. Cost: keeps the result. Errors: kInvalidArgument for integers and
// scalars.

// e^x / sum of e^x
Variable Softmax(const Variable& x, CallSite site = CallSite::Here());

// x - log(sum of e^x), without the rounding of a logarithm of a softmax: finite for any finite row.
Variable LogSoftmax(const Variable& x, CallSite site = CallSite::Here());

}  // namespace sherd
