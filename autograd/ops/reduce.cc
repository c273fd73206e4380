#include "sherd/autograd/ops/reduce.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/internal/contribute.h"
#include "sherd/autograd/ops/internal/dims.h"
#include "sherd/runtime/kernels/indexing.h"
#include "sherd/runtime/kernels/max_over.h"

namespace sherd {
namespace {

using internal::DimOf;

// x's shape with extent 1 in the dimensions of `mask`, or without them.
Shape Reduced(const Shape& shape, uint32_t mask, bool keep_dims) {
  std::vector<int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i) {
    if ((mask >> i & 1u) == 0) {
      extents.push_back(shape[i]);
    } else if (keep_dims) {
      extents.push_back(1);
    }
  }
  return Shape(extents);
}

class SumOverOp final : public Op {
 public:
  SumOverOp(std::span<const int> dims, bool mean, ReduceOptions options)
      : dims_(dims.begin(), dims.end()), mean_(mean), options_(options) {}
  std::string_view name() const override { return mean_ ? "mean" : "sum"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (!IsFloating(in[0].dtype())) RefuseOperand("a float tensor is needed", "x", in[0]);
    plan.outputs = {{in[0].dtype(), Reduced(in[0].shape(), Mask(in[0]), options_.keep_dims)}};
  }
  void Forward(OpForward& f) const override {
    const Tensor& x = f.inputs[0];
    const Shape kept = Reduced(x.shape(), Mask(x), true);
    const Tensor out = f.outputs[0].Reshape(kept);
    const bool of_nothing = mean_ && x.numel() == 0;
    kernels::SumOver(x, out, of_nothing ? 1.0 : Factor(x.shape(), kept));
    if (of_nothing) kernels::Fill(out, std::numeric_limits<double>::quiet_NaN());
  }
  void Backward(OpBackward& b) const override {
    const Shape& shape = b.input_spec(0).shape;
    const Shape kept = Reduced(shape, MaskOf(shape), true);
    const Tensor grad = b.grad().Reshape(kept).Expand(shape);
    const double factor = Factor(shape, kept);
    if (factor == 1.0) return internal::ContributeCopy(b, 0, grad);
    const GradTarget to = b.target(0);
    kernels::Scale(grad, factor, to.tensor, to.write);
  }

 private:
  uint32_t Mask(const Tensor& x) const {
    uint32_t mask = 0;
    for (int dim : dims_) {
      const uint32_t bit = 1u << DimOf(dim, x, "x");
      if ((mask & bit) != 0)
        RefuseOperand(absl::StrCat("dimension ", dim, " is named twice"), "x", x);
      mask |= bit;
    }
    return mask;
  }
  // The same of a shape that Plan has accepted.
  uint32_t MaskOf(const Shape& shape) const {
    uint32_t mask = 0;
    for (int dim : dims_) mask |= 1u << (dim < 0 ? dim + shape.rank() : dim);
    return mask;
  }
  double Factor(const Shape& shape, const Shape& kept) const {
    return mean_ && shape.numel() != 0
               ? static_cast<double>(kept.numel()) / static_cast<double>(shape.numel())
               : 1.0;
  }

  std::vector<int> dims_;
  bool mean_;
  ReduceOptions options_;
};

class MaxOp final : public Op {
 public:
  MaxOp(int dim, ReduceOptions options) : dim_(dim), options_(options) {}
  std::string_view name() const override { return "max"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& x = in[0];
    if (!IsFloating(x.dtype())) RefuseOperand("a float tensor is needed", "x", x);
    const int dim = DimOf(dim_, x, "x");
    if (x.dim(dim) == 0) RefuseOperand("there is no largest of no elements", "x", x);
    const Shape shape = Reduced(x.shape(), 1u << dim, options_.keep_dims);
    plan.outputs = {{x.dtype(), shape}, {DType::kI64, shape}};
    plan.backward_reads_outputs = 0b10;
  }
  void Forward(OpForward& f) const override {
    kernels::MaxOver(f.inputs[0], DimOf(dim_, f.inputs[0], "x"), f.outputs[0], f.outputs[1]);
  }
  void Backward(OpBackward& b) const override {
    const Shape& shape = b.input_spec(0).shape;
    const int dim = dim_ < 0 ? dim_ + shape.rank() : dim_;
    const Shape kept = Reduced(shape, 1u << dim, true);
    const GradTarget to = b.target(0);
    kernels::ScatterAdd(b.grad().Reshape(kept), dim, b.output(1).Reshape(kept), to.tensor,
                        to.write);
  }

 private:
  int dim_;
  ReduceOptions options_;
};

}  // namespace

Variable Sum(const Variable& x, std::span<const int> dims, ReduceOptions options, CallSite site) {
  return ApplyOne(SumOverOp(dims, false, options), {x}, site);
}
Variable Sum(const Variable& x, int dim, ReduceOptions options, CallSite site) {
  return ApplyOne(SumOverOp({&dim, 1}, false, options), {x}, site);
}
Variable Mean(const Variable& x, std::span<const int> dims, ReduceOptions options, CallSite site) {
  return ApplyOne(SumOverOp(dims, true, options), {x}, site);
}
Variable Mean(const Variable& x, int dim, ReduceOptions options, CallSite site) {
  return ApplyOne(SumOverOp({&dim, 1}, true, options), {x}, site);
}
MaxResult Max(const Variable& x, int dim, ReduceOptions options, CallSite site) {
  const std::vector<Variable> results = Apply(MaxOp(dim, options), {&x, 1}, site);
  return {results[0], results[1].value()};
}

}  // namespace sherd
