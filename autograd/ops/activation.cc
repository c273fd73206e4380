#include "sherd/autograd/ops/activation.h"

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/unary.h"

namespace sherd {
namespace {

using kernels::UnaryFunction;

void PlanLike(std::span<const Tensor> in, OpPlan& plan) {
  if (!IsFloating(in[0].dtype())) RefuseOperand("a float tensor is needed", "x", in[0]);
  plan.outputs = {{in[0].dtype(), in[0].shape()}};
}

class UnaryOp final : public Op {
 public:
  explicit UnaryOp(UnaryFunction function) : function_(function) {}
  std::string_view name() const override {
    switch (function_) {
      case UnaryFunction::kExp:
        return "exp";
      case UnaryFunction::kLog:
        return "log";
      case UnaryFunction::kTanh:
        return "tanh";
      case UnaryFunction::kSigmoid:
        return "sigmoid";
      case UnaryFunction::kRelu:
        return "relu";
      case UnaryFunction::kSqrt:
        return "sqrt";
      case UnaryFunction::kRsqrt:
        return "rsqrt";
      case UnaryFunction::kErf:
        return "erf";
      case UnaryFunction::kGelu:
        return "gelu";
      case UnaryFunction::kGeluTanh:
        return "gelu_tanh";
    }
    return "unary";
  }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    PlanLike(in, plan);
    (ReadsValue() ? plan.backward_reads_outputs : plan.backward_reads_inputs) = 0b1;
  }
  void Forward(OpForward& f) const override {
    kernels::Unary(function_, f.inputs[0], f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::UnaryBackward(function_, b.grad(), ReadsValue() ? b.output(0) : b.input(0),
                           target.tensor, target.write);
  }

 private:
  bool ReadsValue() const { return kernels::SlopeReadsValue(function_); }

  UnaryFunction function_;
};

class ClampOp final : public Op {
 public:
  ClampOp(double low, double high) : low_(low), high_(high) {}
  std::string_view name() const override { return "clamp"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    PlanLike(in, plan);
    if (!(low_ <= high_)) {
      ThrowInvalidArgument(
          absl::StrCat("the lower bound ", low_, " is not at most the upper bound ", high_));
    }
    plan.backward_reads_inputs = 0b1;
  }
  void Forward(OpForward& f) const override {
    kernels::Clamp(f.inputs[0], low_, high_, f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::ClampBackward(b.grad(), b.input(0), low_, high_, target.tensor, target.write);
  }

 private:
  double low_, high_;
};

}  // namespace

Variable Gelu(const Variable& x, GeluKind kind, CallSite site) {
  const bool exact = kind == GeluKind::kExact;
  return ApplyOne(UnaryOp(exact ? UnaryFunction::kGelu : UnaryFunction::kGeluTanh), {x}, site);
}
Variable Relu(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kRelu), {x}, site);
}
Variable Sigmoid(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kSigmoid), {x}, site);
}
Variable Tanh(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kTanh), {x}, site);
}
Variable Erf(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kErf), {x}, site);
}
Variable Exp(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kExp), {x}, site);
}
Variable Log(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kLog), {x}, site);
}
Variable Sqrt(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kSqrt), {x}, site);
}
Variable Rsqrt(const Variable& x, CallSite site) {
  return ApplyOne(UnaryOp(UnaryFunction::kRsqrt), {x}, site);
}
Variable Clamp(const Variable& x, double low, double high, CallSite site) {
  return ApplyOne(ClampOp(low, high), {x}, site);
}

}  // namespace sherd
