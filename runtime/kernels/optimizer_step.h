#pragma once

#include "sherd/runtime/core/tensor.h"

// The updates of optimizers, each one pass over flat pieces.
//
// Computed in f32 (f64 for an f64 first operand), whatever is stored, and rounded to nearest, ties
// to even, where it is stored narrower.
// Shapes: equal element counts, contiguous.
// Dtypes: any float for each operand, unless said otherwise.
// REQUIRES: the pieces do not overlap.
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

// One step of AdamW, with decoupled decay:
//   g = grad_scale * grad;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   param = (1 - lr weight_decay) param
//           - lr (m / bias_correction1) / (sqrt(v / bias_correction2) + eps)
//
// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
void AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
               const AdamWCoefficients& coefficients);

// The numbers of one SGD step.
struct SgdCoefficients {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  // added to the gradient, so it enters the momentum too
  double grad_scale = 1.0;
  bool nesterov = false;
  bool first = false;  // the momentum starts with this gradient, undampened
};

// One step of stochastic gradient descent with momentum:
//   g = grad_scale * grad + weight_decay param
//   m = momentum m + (1 - dampening) g        (in the first step the gradient counts in full)
//   param = param - lr (nesterov ? g + momentum m : m)
//
// An undefined `m` means no momentum: param = param - lr g.
// Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep
// learning", in the form of PyTorch, where the rate does not enter the momentum.
void SgdStep(const Tensor& param, const Tensor& grad, const Tensor& m,
             const SgdCoefficients& coefficients);

// The numbers of a momentum that is not applied yet.
struct MomentumCoefficients {
  double momentum = 0.95;
  double grad_scale = 1.0;
  bool nesterov = true;
};

// What an optimizer that transforms whole matrices starts from:
//   g = grad_scale * grad;  m = momentum m + g;  update = nesterov ? g + momentum m : m
//
// Dtypes: update f32 or f64, which is what this is computed in.
void MomentumStep(const Tensor& update, const Tensor& grad, const Tensor& m,
                  const MomentumCoefficients& coefficients);

}  // namespace sherd::kernels
