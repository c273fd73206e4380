#include "sherd/autograd/ops/elementwise.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/dropout.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace {

void CheckFloat(const Tensor& x) {
  if (!IsFloating(x.dtype())) RefuseOperand("a float tensor is needed", "x", x);
}

void PlanPair(std::span<const Tensor> in, OpPlan& plan) {
  CheckFloat(in[0]);
  if (!(in[0].shape() == in[1].shape()) || in[0].dtype() != in[1].dtype()) {
    RefuseOperands("operands need one shape and dtype", "the first", in[0], "the second", in[1]);
  }
  plan.outputs = {{in[0].dtype(), in[0].shape()}};
}

class ScaleOp final : public Op {
 public:
  explicit ScaleOp(double alpha) : alpha_(alpha) {}
  std::string_view name() const override { return "scale"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckFloat(in[0]);
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override { kernels::Scale(f.inputs[0], alpha_, f.outputs[0]); }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::Scale(b.grad(), alpha_, target.tensor, target.write);
  }

 private:
  double alpha_;
};

class SiluOp final : public Op {
 public:
  std::string_view name() const override { return "silu"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckFloat(in[0]);
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
    plan.backward_reads_inputs = 0b1;
  }
  void Forward(OpForward& f) const override { kernels::Silu(f.inputs[0], f.outputs[0]); }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::SiluBackward(b.grad(), b.input(0), target.tensor, target.write);
  }
};

class SiluMulOp final : public Op {
 public:
  std::string_view name() const override { return "silu_mul"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    PlanPair(in, plan);
    plan.backward_reads_inputs = 0b11;
  }
  void Forward(OpForward& f) const override {
    kernels::SiluMul(f.inputs[0], f.inputs[1], f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    if (b.needs(0) && b.needs(1) && !b.same(0, 1)) {
      Write(b, b.target(0), b.target(1));
      return;
    }
    if (b.needs(0)) Write(b, b.target(0), GradTarget{});
    if (b.needs(1)) Write(b, GradTarget{}, b.target(1));
  }

 private:
  static void Write(OpBackward& b, const GradTarget& gate, const GradTarget& up) {
    kernels::SiluMulBackward(b.grad(), b.input(0), b.input(1), gate.tensor, gate.write, up.tensor,
                             up.write);
  }
};

class CastOp final : public Op {
 public:
  explicit CastOp(DType dtype) : dtype_(dtype) {}
  std::string_view name() const override { return "cast"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckFloat(in[0]);
    if (!IsFloating(dtype_)) RefuseOperand("a cast on the tape goes to a float dtype", "x", in[0]);
    plan.outputs = {{dtype_, in[0].shape()}};
  }
  void Forward(OpForward& f) const override { kernels::Cast(f.inputs[0], f.outputs[0]); }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0, GradDType::kAnyFloat);
    kernels::Cast(b.grad(), target.tensor, target.write);
  }

 private:
  DType dtype_;
};

class DropoutOp final : public Op {
 public:
  explicit DropoutOp(double p) : p_(p) {}
  std::string_view name() const override { return "dropout"; }
  OpKind kind() const override { return OpKind::kRandom; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckFloat(in[0]);
    if (!(p_ >= 0.0 && p_ < 1.0)) {
      ThrowInvalidArgument(absl::StrCat("the probability lies in [0, 1), got ", p_));
    }
    if (in[0].rank() < 2 || in[0].rank() > 4) {
      RefuseOperand("x is [B, C], [B, T, C] or [B, T, H, D]", "x", in[0]);
    }
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override {
    const int64_t rows = f.inputs[0].dim(0);
    if (static_cast<int64_t>(f.row_samples.size()) != rows) {
      ThrowInvalidArgument(absl::StrCat(
          "the first dimension of x (", rows, ") is not that of the recording's samples (",
          f.row_samples.size(), "): give Recording the global index of each row's sample"));
    }
    kernels::Dropout(f.inputs[0], f.random_key, f.row_samples, p_, f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::Dropout(b.grad(), b.random_key(), b.row_samples(), p_, target.tensor, target.write);
  }

 private:
  double p_;
};

}  // namespace

Variable Scale(const Variable& x, double alpha, CallSite site) {
  return ApplyOne(ScaleOp(alpha), {x}, site);
}
Variable Silu(const Variable& x, CallSite site) { return ApplyOne(SiluOp(), {x}, site); }
Variable SiluMul(const Variable& gate, const Variable& up, CallSite site) {
  return ApplyOne(SiluMulOp(), {gate, up}, site);
}
Variable Cast(const Variable& x, DType dtype, CallSite site) {
  if (x.defined() && x.dtype() == dtype) return x;
  return ApplyOne(CastOp(dtype), {x}, site);
}
Variable Dropout(const Variable& x, double p, CallSite site) {
  if (!IsRecording() || p == 0.0) return x;
  return ApplyOne(DropoutOp(p), {x}, site);
}

}  // namespace sherd
