#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Root-mean-square normalisation of rows.
// Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
namespace sherd::kernels {

// out = x * inv_rms * weight with inv_rms = 1 / sqrt(mean(x^2) + eps), row by row.
//
// Shapes: x and out [rows, C] (or more leading dimensions that merge into rows), weight [C],
//   inv_rms [rows] contiguous. Inputs have any strides, rows of outputs may be strided.
// REQUIRES: x, weight and out of one float dtype; inv_rms f64 for f64, else f32. out may be x.
void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out,
             const Tensor& inv_rms);

// Gradients of RmsNorm; an undefined gradient tensor is skipped.
//
// The weight's gradient is summed over rows in blocks fixed by the shape: bits do not depend on the
// number of threads.
// Shapes: grad and grad_x as x, grad_weight as weight, inv_rms as written by RmsNorm.
// Dtypes: grad_weight that of weight, or f32.
// REQUIRES: grad_x may be grad, and overlaps no other.
void RmsNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                     const Tensor& inv_rms, const Tensor& grad_x, Write write_x,
                     const Tensor& grad_weight, Write write_weight);

}  // namespace sherd::kernels
