#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// out (+)= scale times the sum of x over the dimensions in which out has extent 1.
//
// The backward of repeating (a bias, NumPy's rules) and the forward of sums and means over chosen
// dimensions; with equal shapes it scales. Summed in f32, in f64 along the innermost dimension and
// for f64, rounded once into out. The order of a sum is fixed by shapes and strides, so bits do not
// depend on the number of threads.
// Shapes: one rank; each extent of out is that of x, or 1. The sum of nothing is 0. x has any
//   strides; one whose innermost elements are not adjacent is copied first.
// Dtypes: any two float dtypes.
// Cost: partial sums of at most 1/64 of x.
// REQUIRES: out overlaps x only if it is x.
void SumOver(const Tensor& x, const Tensor& out, double scale = 1.0,
             Write write = Write::kOverwrite);

}  // namespace sherd::kernels
