#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// out = x / max(norm, eps) for each row, norm its Euclidean length.
//
// Shapes: x and out [..., C]; norms one for each row, contiguous. Rows of out may be strided, x has
//   any strides. Dtypes: x and out one float dtype, norms f64 for f64, else f32. Sums are f64.
void L2Normalize(const Tensor& x, double eps, const Tensor& out, const Tensor& norms);

// grad_x (+)= (grad - y (grad y)) / norm with y = x / norm; grad / eps where the norm is at most
// eps.
void L2NormalizeBackward(const Tensor& grad, const Tensor& x, const Tensor& norms, double eps,
                         const Tensor& grad_x, Write write = Write::kOverwrite);

}  // namespace sherd::kernels
