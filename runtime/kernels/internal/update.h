#pragma once

#include "sherd/runtime/kernels/internal/functions.h"
#include "sherd/runtime/kernels/internal/loops.h"

// What the updates of optimizers compute of one element, as math.h: for the CPU loops and for CUDA.
namespace sherd::kernels::SHERD_ISA {

// The numbers of a step in the dtype it is computed in.
template <typename C>
struct AdamWNumbers {
  C beta1, new1, beta2, new2, eps, decay, step_size, inv_bias2, grad_scale;
};
template <typename C>
SHERD_MATH AdamWNumbers<C> NumbersOf(const internal::AdamWArgs& args) {
  return {static_cast<C>(args.beta1),     static_cast<C>(args.one_minus_beta1),
          static_cast<C>(args.beta2),     static_cast<C>(args.one_minus_beta2),
          static_cast<C>(args.eps),       static_cast<C>(args.decay),
          static_cast<C>(args.step_size), static_cast<C>(args.inv_bias2),
          static_cast<C>(args.grad_scale)};
}

template <typename C>
struct AdamWElement {
  C param, m, v;
};
template <typename C>
SHERD_MATH AdamWElement<C> AdamWOf(const AdamWNumbers<C>& c, C grad, AdamWElement<C> old) {
  const C g = c.grad_scale * grad;
  const C m = c.beta1 * old.m + c.new1 * g;
  const C v = c.beta2 * old.v + c.new2 * (g * g);
  return {c.decay * old.param - c.step_size * m / (Root(v * c.inv_bias2) + c.eps), m, v};
}

template <typename C>
struct SgdNumbers {
  C lr, decay, old_scale, new_scale, grad_scale;
  // Nesterov looks one step ahead of the momentum; else the momentum is the step.
  C of_grad, of_m;
};
template <typename C>
SHERD_MATH SgdNumbers<C> NumbersOf(const internal::SgdArgs& args) {
  return {static_cast<C>(args.lr),
          static_cast<C>(args.weight_decay),
          static_cast<C>(args.old_scale),
          static_cast<C>(args.new_scale),
          static_cast<C>(args.grad_scale),
          args.nesterov ? C(1) : C(0),
          args.nesterov ? static_cast<C>(args.momentum) : C(1)};
}

// Without momentum.
template <typename C>
SHERD_MATH C SgdOf(const SgdNumbers<C>& c, C grad, C param) {
  return param - c.lr * (c.grad_scale * grad + c.decay * param);
}

template <typename C>
struct SgdElement {
  C param, m;
};
template <typename C>
SHERD_MATH SgdElement<C> SgdMomentumOf(const SgdNumbers<C>& c, C grad, SgdElement<C> old) {
  const C g = c.grad_scale * grad + c.decay * old.param;
  const C m = c.old_scale * old.m + c.new_scale * g;
  return {old.param - c.lr * (c.of_grad * g + c.of_m * m), m};
}

template <typename C>
struct MomentumNumbers {
  C momentum, grad_scale, of_grad, of_m;  // as in SgdNumbers
};
template <typename C>
SHERD_MATH MomentumNumbers<C> NumbersOf(const internal::MomentumArgs& args) {
  return {static_cast<C>(args.momentum), static_cast<C>(args.grad_scale),
          args.nesterov ? C(1) : C(0), args.nesterov ? static_cast<C>(args.momentum) : C(1)};
}

template <typename C>
struct MomentumElement {
  C update, m;
};
template <typename C>
SHERD_MATH MomentumElement<C> MomentumOf(const MomentumNumbers<C>& c, C grad, C old_m) {
  const C g = c.grad_scale * grad;
  const C m = c.momentum * old_m + g;
  return {c.of_grad * g + c.of_m * m, m};
}

}  // namespace sherd::kernels::SHERD_ISA
