#include "sherd/autograd/ops/similarity.h"

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/reduce.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/l2_normalize.h"

namespace sherd {
namespace {

class L2NormalizeOp final : public Op {
 public:
  explicit L2NormalizeOp(double eps) : eps_(eps) {}
  std::string_view name() const override { return "l2_normalize"; }
  OpKind kind() const override { return OpKind::kNorm; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& x = in[0];
    if (!IsFloating(x.dtype()) || x.rank() < 1) RefuseOperand("x is a float [..., C]", "x", x);
    if (!(eps_ >= 0.0)) ThrowInvalidArgument(absl::StrCat("eps is not negative, got ", eps_));
    plan.outputs = {{x.dtype(), x.shape()}};
    plan.inner = {{x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32, {x.shape().rows()}}};
    plan.backward_reads_inputs = 0b1;
  }
  void Forward(OpForward& f) const override {
    kernels::L2Normalize(f.inputs[0], eps_, f.outputs[0], f.inner[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget to = b.target(0);
    kernels::L2NormalizeBackward(b.grad(), b.input(0), b.inner(0), eps_, to.tensor, to.write);
  }

 private:
  double eps_;
};

}  // namespace

Variable L2Normalize(const Variable& x, double eps, CallSite site) {
  return ApplyOne(L2NormalizeOp(eps), {x}, site);
}

Variable CosineSimilarity(const Variable& a, const Variable& b, double eps, CallSite site) {
  return Sum(Mul(L2Normalize(a, eps, site), L2Normalize(b, eps, site), site), -1, {}, site);
}

}  // namespace sherd
