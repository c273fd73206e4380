#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// x W^T: each row of x times the rows of the weight.
//
// Shapes: x [..., K], weight [N, K], result [..., N]. The rows of x may be strided.
// Cost: 2 rows K N FLOPs forward, twice that backward; the weight's gradient goes straight to where
// the
//   parameter wants it.
// Errors: kInvalidArgument naming both operands if K, dtypes or devices differ.
Variable Linear(const Variable& x, const Variable& weight, CallSite site = CallSite::Here());

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};

// op(a) op(b) of two matrices, where op transposes if its option is set.
//
// Shapes: op(a) [M, K], op(b) [K, N], result [M, N]. Errors: as Linear.
Variable Matmul(const Variable& a, const Variable& b, MatmulOptions options = {},
                CallSite site = CallSite::Here());

}  // namespace sherd
