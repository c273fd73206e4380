#include "sherd/runtime/kernels/optimizer_step.h"

#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {

void AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
               const AdamWCoefficients& c) {
  const DType wide = internal::ComputeDType(param.dtype());
  const int64_t n = param.numel();
  SHERD_CHECK(grad.numel() == n && m.numel() == n && v.numel() == n,
              "the pieces of an optimizer step differ in size");
  SHERD_CHECK(
      param.is_contiguous() && grad.is_contiguous() && m.is_contiguous() && v.is_contiguous(),
      "a piece of an optimizer step is not contiguous");
  SHERD_CHECK((grad.dtype() == param.dtype() || grad.dtype() == wide) && m.dtype() == v.dtype() &&
                  (m.dtype() == param.dtype() || m.dtype() == wide),
              "gradient or moments of an optimizer step have a dtype that does not fit");
  if (n == 0) return;
  const auto loop = internal::LoopsOf(param.device())
                        .update->adamw[internal::FloatIndex(param.dtype())]
                                      [grad.dtype() == DType::kF32][m.dtype() == DType::kF32];
  internal::AdamWArgs shared = {};
  shared.beta1 = c.beta1;
  shared.one_minus_beta1 = 1.0 - c.beta1;
  shared.beta2 = c.beta2;
  shared.one_minus_beta2 = 1.0 - c.beta2;
  shared.eps = c.eps;
  shared.decay = 1.0 - c.lr * c.weight_decay;
  shared.step_size = c.lr / c.bias_correction1;
  shared.inv_bias2 = 1.0 / c.bias_correction2;
  shared.grad_scale = c.grad_scale;
  param.device().pool().ParallelFor(n, internal::kGrainElems, [&](int64_t begin, int64_t end) {
    internal::AdamWArgs args = shared;
    const auto at = [&](const Tensor& x) {
      return internal::Address(x) + begin * SizeOf(x.dtype());
    };
    args.param = at(param);
    args.grad = at(grad);
    args.m = at(m);
    args.v = at(v);
    loop(args, end - begin);
  });
}

}  // namespace sherd::kernels
