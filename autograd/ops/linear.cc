#include "sherd/autograd/ops/linear.h"

#include <memory>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd {
namespace {

class LinearOp final : public Op {
 public:
  std::string_view name() const override { return "linear"; }
  OpKind kind() const override { return OpKind::kMatmul; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& x = in[0];
    const Tensor& weight = in[1];
    if (x.rank() < 1 || weight.rank() != 2 || x.shape().back() != weight.dim(1) ||
        x.dtype() != weight.dtype() || !IsFloating(x.dtype())) {
      RefuseOperands("x [..., K] and weight [N, K] need one K and one float dtype", "x", x,
                     "weight", weight);
    }
    Shape shape = x.shape();
    shape[shape.rank() - 1] = weight.dim(0);
    plan.outputs = {{x.dtype(), shape}};
    plan.backward_reads_inputs = plan.ReadsOfProduct();
  }
  void Forward(OpForward& f) const override {
    kernels::Matmul(Rows(f.inputs[0]), false, f.inputs[1], true, Rows(f.outputs[0]));
  }
  void Backward(OpBackward& b) const override {
    const Tensor grad = Rows(b.grad());
    if (b.needs(1)) {
      const GradTarget target = b.target(1);
      kernels::Matmul(grad, true, Rows(b.input(0)), false, target.tensor, target.write);
    }
    if (b.needs(0)) {
      const GradTarget target = b.target(0);
      kernels::Matmul(grad, false, b.input(1), false, Rows(target.tensor), target.write);
    }
  }

 private:
  // A matrix of any strides as it is, a tensor of other rank with its rows merged.
  static Tensor Rows(const Tensor& x) {
    if (x.rank() == 2) return x;
    return kernels::PackRows(x).Reshape({x.shape().rows(), x.shape().back()});
  }
};

class MatmulOp final : public Op {
 public:
  explicit MatmulOp(MatmulOptions options) : options_(options) {}
  std::string_view name() const override { return "matmul"; }
  OpKind kind() const override { return OpKind::kMatmul; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& a = in[0];
    const Tensor& b = in[1];
    const bool ranks = a.rank() == 2 && b.rank() == 2;
    if (!ranks || a.dim(options_.transpose_a ? 0 : 1) != b.dim(options_.transpose_b ? 1 : 0) ||
        a.dtype() != b.dtype() || !IsFloating(a.dtype())) {
      RefuseOperands("two matrices need one inner size and one float dtype",
                     options_.transpose_a ? "a (transposed)" : "a", a,
                     options_.transpose_b ? "b (transposed)" : "b", b);
    }
    plan.outputs = {
        {a.dtype(), {a.dim(options_.transpose_a ? 1 : 0), b.dim(options_.transpose_b ? 0 : 1)}}};
    plan.backward_reads_inputs = plan.ReadsOfProduct();
  }
  void Forward(OpForward& f) const override {
    kernels::Matmul(f.inputs[0], options_.transpose_a, f.inputs[1], options_.transpose_b,
                    f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const bool ta = options_.transpose_a;
    const bool tb = options_.transpose_b;
    if (b.needs(0)) {
      const GradTarget target = b.target(0);
      if (ta) {
        kernels::Matmul(b.input(1), tb, b.grad(), true, target.tensor, target.write);
      } else {
        kernels::Matmul(b.grad(), false, b.input(1), !tb, target.tensor, target.write);
      }
    }
    if (b.needs(1)) {
      const GradTarget target = b.target(1);
      if (tb) {
        kernels::Matmul(b.grad(), true, b.input(0), ta, target.tensor, target.write);
      } else {
        kernels::Matmul(b.input(0), !ta, b.grad(), false, target.tensor, target.write);
      }
    }
  }

 private:
  MatmulOptions options_;
};

}  // namespace

Variable Linear(const Variable& x, const Variable& weight, CallSite site) {
  return ApplyOne(LinearOp(), {x, weight}, site);
}

Variable Matmul(const Variable& a, const Variable& b, MatmulOptions options, CallSite site) {
  return ApplyOne(MatmulOp(options), {a, b}, site);
}

}  // namespace sherd
