#include "sherd/autograd/ops/norm.h"

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/layer_norm.h"

namespace sherd {
namespace {

// Inputs: x, then the weight and the bias where there are any.
class LayerNormOp final : public Op {
 public:
  LayerNormOp(double eps, bool has_weight, bool has_bias)
      : eps_(eps),
        weight_(has_weight ? 1 : kNone),
        bias_(has_bias ? (has_weight ? 2 : 1) : kNone) {}
  std::string_view name() const override { return "layer_norm"; }
  OpKind kind() const override { return OpKind::kNorm; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& x = in[0];
    if (!IsFloating(x.dtype()) || x.rank() < 1) {
      RefuseOperand("a float tensor [..., C] is needed", "x", x);
    }
    CheckColumns(in, weight_, "weight");
    CheckColumns(in, bias_, "bias");
    if (!(eps_ >= 0.0)) ThrowInvalidArgument(absl::StrCat("eps is not negative, got ", eps_));
    const DType statistics = ComputeDTypeOf(x.dtype());
    plan.outputs = {{x.dtype(), x.shape()}};
    plan.inner = {{statistics, {x.shape().rows()}}, {statistics, {x.shape().rows()}}};
    if (Wants(plan, 0) || Wants(plan, weight_)) plan.backward_reads_inputs |= 1u;
    if (Wants(plan, 0) && weight_ != kNone) plan.backward_reads_inputs |= 1u << weight_;
  }
  void Forward(OpForward& f) const override {
    const auto at = [&](int i) { return i == kNone ? Tensor() : f.inputs[static_cast<size_t>(i)]; };
    kernels::LayerNorm(f.inputs[0], at(weight_), at(bias_), eps_, f.outputs[0], f.inner[0],
                       f.inner[1]);
  }
  void Backward(OpBackward& b) const override {
    // One after another where one variable is several operands: a target is written before the next
    // of the same variable is asked for.
    const int operands[] = {0, weight_, bias_};
    bool together = true;
    for (int i : operands) {
      for (int j : operands) together &= i == j || i == kNone || j == kNone || !b.same(i, j);
    }
    if (together) return Write(b, true, true, true);
    Write(b, true, false, false);
    Write(b, false, true, false);
    Write(b, false, false, true);
  }

 private:
  static constexpr int kNone = -1;

  static bool Wants(const OpPlan& plan, int i) {
    return i != kNone && (plan.wants_grad >> i & 1u) != 0;
  }

  static void CheckColumns(std::span<const Tensor> in, int i, const char* name) {
    if (i == kNone) return;
    const Tensor& columns = in[static_cast<size_t>(i)];
    if (columns.rank() != 1 || columns.dim(0) != in[0].shape().back() ||
        columns.dtype() != in[0].dtype()) {
      RefuseOperands(absl::StrCat("x [..., C] and ", name, " [C] need one C and one float dtype"),
                     "x", in[0], name, columns);
    }
  }

  void Write(OpBackward& b, bool x, bool weight, bool bias) const {
    const auto target = [&](bool wanted, int i) {
      if (!wanted || i == kNone || !b.needs(i)) return GradTarget{};
      return b.target(i, i == 0 ? GradDType::kOfInput : GradDType::kWide);
    };
    const GradTarget to_x = target(x, 0), to_weight = target(weight, weight_);
    const GradTarget to_bias = target(bias, bias_);
    // The others were not saved; see Plan.
    const bool reads_x = to_x.tensor.defined() || to_weight.tensor.defined();
    const bool reads_weight = to_x.tensor.defined() && weight_ != kNone;
    kernels::LayerNormBackward(b.grad(), reads_x ? b.input(0) : Tensor(),
                               reads_weight ? b.input(weight_) : Tensor(), b.inner(0), b.inner(1),
                               {.x = to_x.tensor,
                                .write_x = to_x.write,
                                .weight = to_weight.tensor,
                                .write_weight = to_weight.write,
                                .bias = to_bias.tensor,
                                .write_bias = to_bias.write});
  }

  double eps_;
  int weight_, bias_;  // places among the inputs
};

}  // namespace

Variable LayerNorm(const Variable& x, const Variable& weight, const Variable& bias, double eps,
                   CallSite site) {
  LayerNormOp op(eps, weight.defined(), bias.defined());
  if (weight.defined() && bias.defined()) return ApplyOne(op, {x, weight, bias}, site);
  if (weight.defined()) return ApplyOne(op, {x, weight}, site);
  if (bias.defined()) return ApplyOne(op, {x, bias}, site);
  return ApplyOne(op, {x}, site);
}

}  // namespace sherd
