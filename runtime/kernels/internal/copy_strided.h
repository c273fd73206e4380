#pragma once

#include "sherd/runtime/core/tensor.h"

namespace sherd::kernels::internal {

// The dimension with the smallest stride among those of more than one element; -1 without any.
int InnermostDim(const Tensor& x);

// Whether no elements of x lie beside each other where those of `out` do, so that a copy by runs
// would take them one by one: a transposed view.
bool IsTransposedCopy(const Tensor& x, const Tensor& out);

// out = x for any strides, in tiles, so that both sides stay in the cache. Any dtype.
// REQUIRES: one shape, dtype, and rank >= 2.
void CopyStrided(const Tensor& x, const Tensor& out);

}  // namespace sherd::kernels::internal
