#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Elements chosen by indices, which are i32 or i64 constants of any strides.
//
// Repeated indices add, in backward or forward, in the order of their places and rounded once, so
// bits do not depend on the number of threads. A negative dimension counts from the back; a
// negative index is an error.
// Errors: kInvalidArgument naming both operands that do not fit; for an index out of range the
//   index, its place in row-major order and the extent, before anything is written.

// x[.., ids, ..]: along dimension `dim` the elements that ids name.
// Shapes: ids any; they take the place of `dim` in the result.
Variable IndexSelect(const Variable& x, int dim, const Variable& ids,
                     CallSite site = CallSite::Here());

// x[ids]: IndexSelect along the first dimension.
Variable GatherRows(const Variable& x, const Variable& ids, CallSite site = CallSite::Here());

// Adds each row of x to the row of a tensor of zeros that its id names: the reverse of GatherRows.
// Shapes: x that of ids and then any others, result [rows, others].
Variable ScatterRows(const Variable& x, const Variable& ids, int64_t rows,
                     CallSite site = CallSite::Here());

// result[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so for every rank and dimension.
// Shapes: index has x's rank and no larger extent but in `dim`; result that of index.
Variable Gather(const Variable& x, int dim, const Variable& index,
                CallSite site = CallSite::Here());

// x with result[i][index[i][j][k]][k] += source[i][j][k] for dim 1, and so on.
// Shapes: source that of index, which fits x as in Gather; result that of x.
Variable ScatterAdd(const Variable& x, int dim, const Variable& index, const Variable& source,
                    CallSite site = CallSite::Here());

// a where mask is not 0, b elsewhere. The gradient of what is not chosen is 0, even if it is NaN.
// Shapes: mask (i32 or i64), a and b are repeated to one shape by NumPy's rules.
Variable Where(const Variable& mask, const Variable& a, const Variable& b,
               CallSite site = CallSite::Here());

}  // namespace sherd
