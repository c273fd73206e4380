#pragma once

#include "sherd/runtime/core/tensor.h"

namespace sherd::kernels {

// The largest element along dimension `dim`, and its index there.
//
// Of equal elements the first. A NaN is larger than everything; of several the first.
// Shapes: x any of rank >= 1 with x.dim(dim) > 0, any strides; values and indices contiguous, one
//   element for each line along `dim`, in row-major order.
// Dtypes: values that of x, a float; indices i64.
void MaxOver(const Tensor& x, int dim, const Tensor& values, const Tensor& indices);

}  // namespace sherd::kernels
