#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Softmax and its logarithm over the last dimension.
//
// Shapes: all operands of a call have one shape [..., C]. Inputs have any strides (rows that are
// not
//   evenly spaced are copied first), rows of outputs may be strided.
// Dtypes: one float dtype; bf16 and f16 are computed in f32 and rounded once.
// Safe for any finite row: the largest element is taken away first. An element of -infinity has the
//   probability 0. A row of nothing but -infinity has none and gives NaN, as in PyTorch, and so do
//   rows that hold +infinity or NaN.
namespace sherd::kernels {

// out = e^(x - max) / sum of e^(x - max). out may be x.
void Softmax(const Tensor& x, const Tensor& out);

// out = x - log of the sum of e^x. out may be x.
void LogSoftmax(const Tensor& x, const Tensor& out);

// grad_x (+)= y (grad - sum of grad y), where y is what Softmax gave. grad_x may be grad or y.
void SoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                     Write write = Write::kOverwrite);

// grad_x (+)= grad - e^y sum of grad, where y is what LogSoftmax gave. grad_x may be grad or y.
void LogSoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                        Write write = Write::kOverwrite);

}  // namespace sherd::kernels
