#pragma once

#include <span>
#include <vector>

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// The same elements in another shape; a view. Errors: kInvalidArgument if counts differ, or if a
// strided x cannot be viewed so.
Variable Reshape(const Variable& x, const Shape& shape, CallSite site = CallSite::Here());

// Elements [begin, end) of dimension `dim`; a view.
Variable Slice(const Variable& x, int dim, int64_t begin, int64_t end,
               CallSite site = CallSite::Here());

// Consecutive slices of dimension `dim` with the given sizes, which add up to it; views.
// Cost: backward writes each part's gradient once, where slices one by one also fill with zeros.
std::vector<Variable> Split(const Variable& x, int dim, std::span<const int64_t> sizes,
                            CallSite site = CallSite::Here());

// Operands one after another along `dim`; a copy. Shapes: equal but for `dim`. Errors:
// kInvalidArgument naming both operands that disagree.
Variable Concat(std::span<const Variable> xs, int dim, CallSite site = CallSite::Here());

// The same one after another along a new dimension `dim` of the result; a copy. A negative `dim`
// counts from the back. Shapes: equal. Errors: as Concat.
Variable Stack(std::span<const Variable> xs, int dim, CallSite site = CallSite::Here());

// Dimensions a and b exchanged; a view. Negative ones count from the back. Errors: kInvalidArgument
// for a dimension that does not exist.
Variable Transpose(const Variable& x, int a, int b, CallSite site = CallSite::Here());

// Dimension i of the result is dimension order[i] of x; a view. Errors: kInvalidArgument unless
// `order` names each dimension once.
Variable Permute(const Variable& x, std::span<const int> order, CallSite site = CallSite::Here());

// Repeats x to `shape` by NumPy's rules; a view of stride 0, whose gradient is summed over what was
// repeated. Errors: kInvalidArgument if an extent fits neither.
Variable Expand(const Variable& x, const Shape& shape, CallSite site = CallSite::Here());

// Puts `value` around x; a copy. pads holds how many before and after in the last dimension, then
// in the one before it, and so on: {1, 2} makes [.., n] to [.., 1 + n + 2]. Errors:
// kInvalidArgument for a negative or an odd number of them, or more than dimensions.
Variable Pad(const Variable& x, std::span<const int64_t> pads, double value = 0.0,
             CallSite site = CallSite::Here());

// The sum of all elements. Shapes: any x, result [1].
Variable Sum(const Variable& x, CallSite site = CallSite::Here());

}  // namespace sherd
