#include "sherd/autograd/ops/linear.h"

#include <memory>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/internal/contribute.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd {
namespace {

// A matrix of any strides as it is, a tensor of other rank with its rows merged.
Tensor Rows(const Tensor& x) {
  if (x.rank() == 2) return x;
  return kernels::PackRows(x).Reshape({x.shape().rows(), x.shape().back()});
}

class LinearOp final : public Op {
 public:
  explicit LinearOp(bool has_bias) : has_bias_(has_bias) {}
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
    if (in.size() == 3 &&
        (!(in[2].shape() == weight.shape().Prefix(1)) || in[2].dtype() != weight.dtype())) {
      RefuseOperands("weight [N, K] and bias [N] need one N and one dtype", "weight", weight,
                     "bias", in[2]);
    }
    Shape shape = x.shape();
    shape[shape.rank() - 1] = weight.dim(0);
    plan.outputs = {{x.dtype(), shape}};
    plan.backward_reads_inputs = plan.ReadsOfProduct();
    plan.flops = 2.0 * static_cast<double>(x.shape().rows()) * static_cast<double>(weight.numel());
  }
  void Forward(OpForward& f) const override {
    kernels::Write write = kernels::Write::kOverwrite;
    if (f.inputs.size() == 3) {
      kernels::Copy(f.inputs[2].Expand(f.outputs[0].shape()), f.outputs[0]);
      write = kernels::Write::kAdd;
    }
    kernels::Matmul(Rows(f.inputs[0]), false, f.inputs[1], true, Rows(f.outputs[0]), write);
  }
  void Backward(OpBackward& b) const override {
    const Tensor grad = Rows(b.grad());
    if (b.needs(1)) {
      const GradTarget target = b.target(1, GradDType::kWide);
      kernels::Matmul(grad, true, Rows(b.input(0)), false, target.tensor, target.write);
    }
    if (has_bias_ && b.needs(2)) internal::ContributeSum(b, 2, grad);
    if (b.needs(0)) {
      const GradTarget target = b.target(0, GradDType::kWide);
      kernels::Matmul(grad, false, b.input(1), false, Rows(target.tensor), target.write);
    }
  }

 private:
  bool has_bias_;
};

// The leading dimensions of a batch of matrices.
Shape BatchOf(const Tensor& x) { return x.shape().Prefix(x.rank() - 2); }

// Matrix `index` of a batch; a matrix is that of every index.
Tensor MatrixOf(const Tensor& x, int64_t index) {
  if (x.rank() == 2) return x;
  Tensor matrix = x;
  for (int64_t below = BatchOf(x).numel(); matrix.rank() > 2;) {
    below /= matrix.dim(0);
    const int64_t i = index / below;
    index %= below;
    matrix = matrix.Slice(0, i, i + 1).Reshape(Shape(matrix.shape().extents().subspan(1)));
  }
  return matrix;
}

// out (+)= op(a) op(b), matrix by matrix; summed over the batch if out is one matrix.
void Product(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
             const Tensor& out, kernels::Write write) {
  const int64_t count = BatchOf(a.rank() > 2 ? a : b).numel();
  const bool sums = out.rank() == 2 && (a.rank() > 2 || b.rank() > 2);
  if (sums && count == 0 && write == kernels::Write::kOverwrite) kernels::Fill(out, 0.0);
  Tensor sum = out;
  const bool narrow = out.dtype() == DType::kBF16 || out.dtype() == DType::kF16;
  const bool apart = sums && narrow && count > 1;
  if (apart) sum = Tensor::Empty(out.device(), DType::kF32, out.shape());
  const kernels::Write first = apart ? kernels::Write::kOverwrite : write;
  for (int64_t i = 0; i < count; ++i) {
    kernels::Matmul(MatrixOf(a, i), transpose_a, MatrixOf(b, i), transpose_b,
                    sums ? sum : MatrixOf(out, i), sums && i > 0 ? kernels::Write::kAdd : first);
  }
  if (apart) kernels::Cast(sum, out, write);
}

class MatmulOp final : public Op {
 public:
  explicit MatmulOp(MatmulOptions options) : options_(options) {}
  std::string_view name() const override { return "matmul"; }
  OpKind kind() const override { return OpKind::kMatmul; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& a = in[0];
    const Tensor& b = in[1];
    const auto [ta, tb] = options_;
    const bool ranks = a.rank() >= 2 && b.rank() >= 2;
    const bool batches = ranks && (a.rank() == 2 || b.rank() == 2 || BatchOf(a) == BatchOf(b));
    if (!batches || a.shape().back(ta ? 1 : 0) != b.shape().back(tb ? 0 : 1) ||
        a.dtype() != b.dtype() || !IsFloating(a.dtype())) {
      RefuseOperands(
          "matrices need one inner size and one float dtype, and batches of them equal leading "
          "dimensions",
          ta ? "a (transposed)" : "a", a, tb ? "b (transposed)" : "b", b);
    }
    const int64_t rows = a.shape().back(ta ? 0 : 1), columns = b.shape().back(tb ? 1 : 0);
    const Shape batch = BatchOf(a.rank() > 2 ? a : b);
    plan.outputs = {{a.dtype(), batch.Append(rows).Append(columns)}};
    plan.backward_reads_inputs = plan.ReadsOfProduct();
    plan.flops = 2.0 * static_cast<double>(plan.outputs[0].shape.numel()) *
                 static_cast<double>(a.shape().back(ta ? 1 : 0));
  }
  void Forward(OpForward& f) const override {
    const bool rows = AreRowsOfOne(f.inputs[0].rank(), f.inputs[1].rank());
    Product(rows ? Rows(f.inputs[0]) : f.inputs[0], options_.transpose_a, f.inputs[1],
            options_.transpose_b, rows ? Rows(f.outputs[0]) : f.outputs[0],
            kernels::Write::kOverwrite);
  }
  void Backward(OpBackward& b) const override {
    const auto [ta, tb] = options_;
    const bool rows = AreRowsOfOne(b.input_spec(0).shape.rank(), b.input_spec(1).shape.rank());
    const Tensor grad = rows ? Rows(b.grad()) : b.grad();
    if (b.needs(0)) {
      const GradTarget target = b.target(0, GradDType::kWide);
      const Tensor to = rows ? Rows(target.tensor) : target.tensor;
      if (ta) {
        Product(b.input(1), tb, grad, true, to, target.write);
      } else {
        Product(grad, false, b.input(1), !tb, to, target.write);
      }
    }
    if (b.needs(1)) {
      const GradTarget target = b.target(1, GradDType::kWide);
      const Tensor a = rows ? Rows(b.input(0)) : b.input(0);
      if (tb) {
        Product(grad, true, a, ta, target.tensor, target.write);
      } else {
        Product(a, !ta, grad, false, target.tensor, target.write);
      }
    }
  }

 private:
  // Many matrices times one are one product of all their rows.
  bool AreRowsOfOne(int rank_a, int rank_b) const {
    return rank_a > 2 && rank_b == 2 && !options_.transpose_a;
  }

  MatmulOptions options_;
};

}  // namespace

Variable Linear(const Variable& x, const Variable& weight, CallSite site) {
  return ApplyOne(LinearOp(false), {x, weight}, site);
}

Variable Linear(const Variable& x, const Variable& weight, const Variable& bias, CallSite site) {
  if (!bias.defined()) return Linear(x, weight, site);
  return ApplyOne(LinearOp(true), {x, weight, bias}, site);
}

Variable Matmul(const Variable& a, const Variable& b, MatmulOptions options, CallSite site) {
  return ApplyOne(MatmulOp(options), {a, b}, site);
}

}  // namespace sherd
