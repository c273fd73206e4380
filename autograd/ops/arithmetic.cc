#include "sherd/autograd/ops/arithmetic.h"

#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/internal/contribute.h"
#include "sherd/runtime/kernels/broadcast.h"
#include "sherd/runtime/kernels/power.h"

namespace sherd {
namespace {

using internal::ContributeSum;
using kernels::Arithmetic;

// Sets the output to the broadcast shape.
void PlanPair(std::span<const Tensor> in, OpPlan& plan) {
  if (!IsFloating(in[0].dtype())) RefuseOperand("a float tensor is needed", "the first", in[0]);
  Shape shape;
  if (in[0].dtype() != in[1].dtype() ||
      !kernels::BroadcastShape(in[0].shape(), in[1].shape(), shape)) {
    RefuseOperands("operands need one dtype and shapes that broadcast", "the first", in[0],
                   "the second", in[1]);
  }
  plan.outputs = {{in[0].dtype(), shape}};
}

// What products of gradients are computed in before they are summed.
Tensor Widened(const Tensor& x) {
  if (x.dtype() == DType::kF64 || x.dtype() == DType::kF32) return x;
  const Tensor wide = Tensor::Empty(x.device(), DType::kF32, x.shape());
  kernels::Cast(x, wide);
  return wide;
}

// a op b in the shape of a, in what products of gradients are computed in.
Tensor Combine(Arithmetic op, const Tensor& a, const Tensor& b) {
  const Tensor out = Tensor::Empty(a.device(), ComputeDTypeOf(a.dtype()), a.shape());
  kernels::Broadcast(op, a, b, out);
  return out;
}

// a + b and a - b.
class SumOp final : public Op {
 public:
  explicit SumOp(Arithmetic arithmetic) : arithmetic_(arithmetic) {}
  std::string_view name() const override { return arithmetic_ == Arithmetic::kAdd ? "add" : "sub"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override { PlanPair(in, plan); }
  void Forward(OpForward& f) const override {
    if (arithmetic_ == Arithmetic::kAdd && f.inputs[0].shape() == f.inputs[1].shape()) {
      kernels::Add(f.inputs[0], f.inputs[1], f.outputs[0]);
    } else {
      kernels::Broadcast(arithmetic_, f.inputs[0], f.inputs[1], f.outputs[0]);
    }
  }
  void Backward(OpBackward& b) const override {
    for (int i = 0; i < 2; ++i) {
      if (!b.needs(i)) continue;
      const double sign = i == 1 && arithmetic_ == Arithmetic::kSub ? -1.0 : 1.0;
      if (sign == 1.0 && b.input_spec(i).shape == b.grad().shape()) {
        b.Pass(i, b.grad());
      } else {
        ContributeSum(b, i, b.grad(), sign);
      }
    }
  }

 private:
  Arithmetic arithmetic_;
};

class MulOp final : public Op {
 public:
  std::string_view name() const override { return "mul"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    PlanPair(in, plan);
    plan.backward_reads_inputs = plan.ReadsOfProduct();
  }
  void Forward(OpForward& f) const override {
    if (f.inputs[0].shape() == f.inputs[1].shape()) {
      kernels::Mul(f.inputs[0], f.inputs[1], f.outputs[0]);
    } else {
      kernels::Broadcast(Arithmetic::kMul, f.inputs[0], f.inputs[1], f.outputs[0]);
    }
  }
  void Backward(OpBackward& b) const override {
    for (int i = 0; i < 2; ++i) {
      if (!b.needs(i)) continue;
      const Tensor& other = b.input(1 - i);
      if (b.input_spec(i).shape == b.grad().shape()) {
        const GradTarget to = b.target(i, GradDType::kWide);
        kernels::Broadcast(Arithmetic::kMul, b.grad(), other, to.tensor, to.write);
      } else {
        ContributeSum(b, i, Combine(Arithmetic::kMul, b.grad(), other));
      }
    }
  }
};

class DivOp final : public Op {
 public:
  std::string_view name() const override { return "div"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    PlanPair(in, plan);
    plan.backward_reads_inputs = (plan.wants_grad & 0b10u) != 0 ? 0b11 : 0b10;
  }
  void Forward(OpForward& f) const override {
    kernels::Broadcast(Arithmetic::kDiv, f.inputs[0], f.inputs[1], f.outputs[0]);
  }
  // g / b, and -g a / b^2.
  void Backward(OpBackward& b) const override {
    if (b.needs(0) && b.input_spec(0).shape == b.grad().shape()) {
      const GradTarget to = b.target(0, GradDType::kWide);
      kernels::Broadcast(Arithmetic::kDiv, b.grad(), b.input(1), to.tensor, to.write);
    } else if (b.needs(0)) {
      ContributeSum(b, 0, Combine(Arithmetic::kDiv, b.grad(), b.input(1)));
    }
    if (!b.needs(1)) return;
    const Tensor divisor = Widened(b.input(1));
    const Tensor grad = Combine(Arithmetic::kDiv, b.grad(), b.input(1));
    kernels::Broadcast(Arithmetic::kMul, grad, Widened(b.input(0)), grad);
    kernels::Broadcast(Arithmetic::kDiv, grad, divisor, grad);
    ContributeSum(b, 1, grad, -1.0);
  }
};

class PowOp final : public Op {
 public:
  explicit PowOp(double exponent) : exponent_(exponent) {}
  std::string_view name() const override { return "pow"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (!IsFloating(in[0].dtype())) RefuseOperand("a float tensor is needed", "x", in[0]);
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
    plan.backward_reads_inputs = 0b1;
  }
  void Forward(OpForward& f) const override {
    kernels::Power(f.inputs[0], exponent_, f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget to = b.target(0);
    kernels::PowerBackward(b.grad(), b.input(0), exponent_, to.tensor, to.write);
  }

 private:
  double exponent_;
};

}  // namespace

Variable Add(const Variable& a, const Variable& b, CallSite site) {
  return ApplyOne(SumOp(Arithmetic::kAdd), {a, b}, site);
}
Variable Sub(const Variable& a, const Variable& b, CallSite site) {
  return ApplyOne(SumOp(Arithmetic::kSub), {a, b}, site);
}
Variable Mul(const Variable& a, const Variable& b, CallSite site) {
  return ApplyOne(MulOp(), {a, b}, site);
}
Variable Div(const Variable& a, const Variable& b, CallSite site) {
  return ApplyOne(DivOp(), {a, b}, site);
}
Variable Neg(const Variable& x, CallSite site) { return Scale(x, -1.0, site); }
Variable Square(const Variable& x, CallSite site) { return ApplyOne(MulOp(), {x, x}, site); }
Variable Pow(const Variable& x, double exponent, CallSite site) {
  return ApplyOne(PowOp(exponent), {x}, site);
}

}  // namespace sherd
