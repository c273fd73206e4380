#pragma once

#include <span>

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Reductions over chosen dimensions; Sum of all elements is in shape.h.
//
// A negative dimension counts from the back: -1 is the innermost.
// Shapes: the reduced dimensions have extent 1 in the result if keep_dims, else they are gone; a
//   result of no dimensions has shape []. Any strides.
// Errors: kInvalidArgument for a dimension that does not exist or is named twice.

struct ReduceOptions {
  bool keep_dims = false;
};

// The sum; of nothing it is 0. Summed in f32 or wider and rounded once.
Variable Sum(const Variable& x, std::span<const int> dims, ReduceOptions options = {},
             CallSite site = CallSite::Here());
Variable Sum(const Variable& x, int dim, ReduceOptions options = {},
             CallSite site = CallSite::Here());

// The sum divided by the number of elements; of nothing it is NaN.
Variable Mean(const Variable& x, std::span<const int> dims, ReduceOptions options = {},
              CallSite site = CallSite::Here());
Variable Mean(const Variable& x, int dim, ReduceOptions options = {},
              CallSite site = CallSite::Here());

struct MaxResult {
  Variable values;
  Tensor indices;  // i64, of the element taken, along the dimension
};

// The largest element along one dimension, and where it is.
//
// Of equal elements the first is taken, and it alone gets the gradient. NaN counts as larger than
// everything: where there is one, the first is taken.
// Errors: also if the dimension has no elements.
MaxResult Max(const Variable& x, int dim, ReduceOptions options = {},
              CallSite site = CallSite::Here());

}  // namespace sherd
