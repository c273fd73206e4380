#pragma once

#include <string_view>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"

namespace sherd::internal {

// Dimension `dim` of x, counted from the back if negative. Errors: kInvalidArgument naming x if
// there is none, for the Plan of an op.
inline int DimOf(int dim, const Tensor& x, std::string_view name) {
  const int from_front = dim < 0 ? dim + x.rank() : dim;
  if (from_front < 0 || from_front >= x.rank()) {
    RefuseOperand(absl::StrCat("there is no dimension ", dim), name, x);
  }
  return from_front;
}

}  // namespace sherd::internal
