#pragma once

#include "sherd/runtime/core/tensor.h"

namespace sherd {

// Replaces the matrix by one with about the same singular vectors and all singular values near 1:
// the step in the direction of steepest descent under the spectral norm.
//
// Iterates X <- a X + (b A + c A^2) X with A = X X^T on X / (|X| + 1e-7), with coefficients chosen
// for a steep slope at zero: five iterations bring singular values to between about 0.7 and 1.2.
// A matrix with more rows than columns is multiplied from the other side. NaN and infinity give
// NaN.
// Shapes: x [R, C], contiguous.
// Dtypes: f32 or f64, which it is computed in.
// Cost: per iteration 2 K L (2 K) + 2 K^3 FLOPs, K the smaller and L the larger extent; workspace
//   of R C + 3 K^2 elements.
// REQUIRES: iterations >= 0.
// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the
// iteration is Kovarik 1970 and Bjorck and Bowie 1971.
void Orthogonalize(const Tensor& x, int iterations);

}  // namespace sherd
