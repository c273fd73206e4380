#pragma once

#include "sherd/runtime/core/tensor.h"

namespace sherd::kernels {

// The numbers of one AdamW step, the same for every piece of a parameter group.
struct AdamWCoefficients {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double bias_correction1 = 1.0;  // 1 - beta1^t, t counted from 1
  double bias_correction2 = 1.0;  // 1 - beta2^t
  double grad_scale = 1.0;        // multiplies the gradient first: clipping, loss scale
};

// One step of AdamW in a single pass over four flat pieces, with decoupled decay:
//   g = grad_scale * grad;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   param = (1 - lr weight_decay) param
//           - lr (m / bias_correction1) / (sqrt(v / bias_correction2) + eps)
//
// Computed in f32 (f64 for f64), whatever is stored.
// Shapes: equal element counts, contiguous.
// Dtypes: param any float; grad has that of param, and so have m and v; with a 16-bit param each
//   may be f32 instead.
// REQUIRES: the pieces do not overlap.
// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
void AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
               const AdamWCoefficients& coefficients);

}  // namespace sherd::kernels
