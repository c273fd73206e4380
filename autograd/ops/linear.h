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

// x W^T + bias, rounded once. An undefined bias is none.
//
// Shapes: bias [N]. Cost: one more pass over the result; the bias' gradient, the sum of the rows,
//   goes straight to where the parameter wants it.
Variable Linear(const Variable& x, const Variable& weight, const Variable& bias,
                CallSite site = CallSite::Here());

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};

// op(a) op(b) of matrices, where op transposes the last two dimensions if its option is set.
//
// Shapes: op(a) [..., M, K], op(b) [..., K, N], result [..., M, N]. The leading dimensions are
// equal,
//   or one operand has none and is multiplied with every matrix of the other. Any strides.
// Cost: matrices of a batch one after another, except that many a with one b are one product. The
//   gradient of an operand without batch is summed in f32 and rounded once.
// Errors: as Linear.
Variable Matmul(const Variable& a, const Variable& b, MatmulOptions options = {},
                CallSite site = CallSite::Here());

}  // namespace sherd
