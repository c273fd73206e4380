// An op of one's own: squared ReLU (So et al. 2021, "Primer"), checked by finite differences and
// trained with. Prints the worst error of its gradient and the losses of a few steps.
#include <algorithm>
#include <array>
#include <cstdio>

#include "sherd/autograd/apply.h"
#include "sherd/autograd/gradcheck.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/random.h"

namespace {

using namespace sherd;

// y = max(x, 0)^2, for contiguous f32 and f64 tensors.
class SquaredReluOp final : public Op {
 public:
  std::string_view name() const override { return "squared_relu"; }
  OpKind kind() const override { return OpKind::kElementwise; }

  // Refuses what the loops below cannot do, and says what backward reads.
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const bool known = in[0].dtype() == DType::kF32 || in[0].dtype() == DType::kF64;
    if (!known || !in[0].is_contiguous()) RefuseOperand("x is contiguous f32 or f64", "x", in[0]);
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
    plan.backward_reads_inputs = 0b1;
  }
  void Forward(OpForward& f) const override {
    if (f.inputs[0].dtype() == DType::kF64) return Square<double>(f.inputs[0], f.outputs[0]);
    Square<float>(f.inputs[0], f.outputs[0]);
  }
  // The target may hold earlier contributions: it is overwritten or added to, as it says.
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    if (b.input(0).dtype() == DType::kF64) return Slope<double>(b.grad(), b.input(0), target);
    Slope<float>(b.grad(), b.input(0), target);
  }

 private:
  template <typename T>
  static void Square(const Tensor& x, const Tensor& y) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] > 0 ? in[i] * in[i] : 0;
  }
  template <typename T>
  static void Slope(const Tensor& grad, const Tensor& x, const GradTarget& target) {
    const bool add = target.write == kernels::Write::kAdd;
    T* out = target.tensor.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const T slope = 2 * std::max<T>(x.data<T>()[i], 0) * grad.data<T>()[i];
      out[i] = add ? out[i] + slope : slope;
    }
  }
};

Variable SquaredRelu(const Variable& x, CallSite site = CallSite::Here()) {
  return ApplyOne(SquaredReluOp(), {x}, site);
}

}  // namespace

int main() {
  const Device device = Device::Cpu();
  const Tensor point = Tensor::Empty(device, DType::kF64, {4, 8});
  kernels::FillNormal(point, /*key=*/1, 0, 0.0, 1.0);
  const GradCheckResult check =
      GradCheck([](std::span<const Variable> in) { return SquaredRelu(in[0]); }, {&point, 1});
  std::printf("worst error of the gradient %.1e\n", check.worst_error);

  LinearLayer layer(8, 8, Initializer::Normal(0.3));
  Initialize(layer, device, /*seed=*/1);
  AdamW optimizer(layer.parameters(), {.weight_decay = 0.0});
  const Tensor x = Tensor::Empty(device, DType::kF32, {16, 8});
  kernels::FillNormal(x, /*key=*/2, 0, 0.0, 1.0);
  Tape tape;
  std::array<double, 2> losses = {0.0, 0.0};  // before and after
  for (int step = 0; step < 50; ++step) {
    const Recording on(tape);
    const Variable loss = Sum(SquaredRelu(layer(x)));
    losses[step == 0 ? 0 : 1] = loss.value().data<float>()[0];
    tape.Backward(loss);
    tape.Reset();
    optimizer.Step({.learning_rate = 0.01});
    for (const Parameter& parameter : layer.parameters()) parameter.ClearGrad();
  }
  std::printf("loss %.3f, after 50 steps %.3f\n", losses[0], losses[1]);
  return check.worst_error < 1e-7 && losses[1] < losses[0] / 2 ? 0 : 1;
}
