#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Normalisation of rows to mean 0 and variance 1.
// Source: Ba, Kiros and Hinton 2016, "Layer Normalization".
namespace sherd::kernels {

// out = (x - mean) * inv_std * weight + bias with inv_std = 1 / sqrt(variance + eps), row by row;
// the variance is the mean of (x - mean)^2, in a second pass over the row.
//
// Shapes: x and out [rows, C] (or more leading dimensions that merge into rows), weight and bias
//   [C], mean and inv_std [rows] contiguous. An undefined weight is 1, an undefined bias 0. Inputs
//   have any strides, rows of out may be strided.
// REQUIRES: x, weight, bias and out of one float dtype; mean and inv_std f64 for f64, else f32. out
//   may be x.
void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
               const Tensor& out, const Tensor& mean, const Tensor& inv_std);

// What LayerNormBackward writes: an undefined tensor is skipped.
struct LayerNormGradients {
  Tensor x;  // as x
  Write write_x = Write::kOverwrite;
  Tensor weight;  // [C], of the weight's dtype or f32
  Write write_weight = Write::kOverwrite;
  Tensor bias;  // as weight
  Write write_bias = Write::kOverwrite;
};

// Gradients of LayerNorm. With n = (x - mean) * inv_std and g = grad * weight:
//   grad_x = inv_std (g - mean(g) - n mean(g n)), grad_weight = sum over rows of grad n,
//   grad_bias = sum over rows of grad.
//
// Sums over rows are taken in blocks fixed by the shape: bits do not depend on the number of
// threads, nor on which gradients are asked for.
// Shapes: grad as x, mean and inv_std as written by LayerNorm. An undefined weight is 1, and need
//   not be given where the gradient of x is not asked for, nor x where only the bias's is.
// REQUIRES: the gradient of x may be `grad`, and overlaps no other operand.
void LayerNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                       const Tensor& mean, const Tensor& inv_std,
                       const LayerNormGradients& gradients);

}  // namespace sherd::kernels
