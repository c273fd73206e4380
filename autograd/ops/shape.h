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

// The sum of all elements. Shapes: any x, result [1].
Variable Sum(const Variable& x, CallSite site = CallSite::Here());

}  // namespace sherd
