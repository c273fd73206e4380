#pragma once

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/optimizer_step.h"

// What the updates of optimizers make of their coefficients and operands on every device.
namespace sherd::kernels::internal {

inline void CheckPiece(const Tensor& x, int64_t elems) {
  SHERD_CHECK(x.numel() == elems, "the pieces of an optimizer step differ in size");
  SHERD_CHECK(x.is_contiguous(), "a piece of an optimizer step is not contiguous");
  SHERD_CHECK(IsFloating(x.dtype()), "a piece of an optimizer step is no float");
}

// The arguments of a loop but for its operands.
inline AdamWArgs ArgsOf(const AdamWCoefficients& c) {
  AdamWArgs args = {};
  args.beta1 = c.beta1;
  args.one_minus_beta1 = 1.0 - c.beta1;
  args.beta2 = c.beta2;
  args.one_minus_beta2 = 1.0 - c.beta2;
  args.eps = c.eps;
  args.decay = 1.0 - c.lr * c.weight_decay;
  args.step_size = c.lr / c.bias_correction1;
  args.inv_bias2 = 1.0 / c.bias_correction2;
  args.grad_scale = c.grad_scale;
  return args;
}

inline SgdArgs ArgsOf(const SgdCoefficients& c) {
  SgdArgs args = {};
  args.lr = c.lr;
  args.momentum = c.momentum;
  args.old_scale = c.first ? 0.0 : c.momentum;
  args.weight_decay = c.weight_decay;
  args.grad_scale = c.grad_scale;
  args.new_scale = c.first ? 1.0 : 1.0 - c.dampening;
  args.nesterov = c.nesterov;
  return args;
}

inline MomentumArgs ArgsOf(const MomentumCoefficients& c) {
  MomentumArgs args = {};
  args.momentum = c.momentum;
  args.grad_scale = c.grad_scale;
  args.nesterov = c.nesterov;
  return args;
}

}  // namespace sherd::kernels::internal
