#include "sherd/autograd/ops/indexing.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/internal/contribute.h"
#include "sherd/autograd/ops/internal/dims.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/broadcast.h"
#include "sherd/runtime/kernels/indexing.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd {
namespace {

using internal::DimOf;

bool IsInteger(const Tensor& x) { return x.dtype() == DType::kI32 || x.dtype() == DType::kI64; }

void CheckIndexed(const Tensor& x, std::string_view name, const Tensor& ids,
                  std::string_view ids_name) {
  if (!IsFloating(x.dtype()) || !IsInteger(ids)) {
    RefuseOperands("a float tensor and i32 or i64 indices are needed", name, x, ids_name, ids);
  }
}

// shape[0, begin), then `middle`, then shape[end, rank).
Shape Replaced(const Shape& shape, int begin, int end, std::span<const int64_t> middle) {
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().begin() + begin);
  extents.insert(extents.end(), middle.begin(), middle.end());
  extents.insert(extents.end(), shape.extents().begin() + end, shape.extents().end());
  return Shape(extents);
}

// Inputs: x, ids.
class IndexSelectOp final : public Op {
 public:
  explicit IndexSelectOp(int dim) : dim_(dim) {}
  std::string_view name() const override { return "index_select"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckIndexed(in[0], "x", in[1], "ids");
    const int dim = DimOf(dim_, in[0], "x");
    plan.outputs = {
        {in[0].dtype(), Replaced(in[0].shape(), dim, dim + 1, in[1].shape().extents())}};
    plan.backward_reads_inputs = 0b10;
  }
  void Forward(OpForward& f) const override {
    const Tensor& x = f.inputs[0];
    const int dim = DimOf(dim_, x, "x");
    kernels::IndexSelect(x, dim, f.inputs[1],
                         f.outputs[0].Reshape(Chosen(x.shape(), dim, f.inputs[1])));
  }
  void Backward(OpBackward& b) const override {
    const Shape& shape = b.input_spec(0).shape;
    const int dim = dim_ < 0 ? dim_ + shape.rank() : dim_;
    const Tensor grad = kernels::Pack(b.grad()).Reshape(Chosen(shape, dim, b.input(1)));
    const GradTarget to = b.target(0);
    kernels::IndexAdd(grad, dim, b.input(1), to.tensor, to.write);
  }

 private:
  // The result's shape with the ids in one dimension.
  static Shape Chosen(const Shape& shape, int dim, const Tensor& ids) {
    const int64_t count = ids.numel();
    return Replaced(shape, dim, dim + 1, {&count, 1});
  }
  int dim_;
};

// Inputs: x, ids.
class ScatterRowsOp final : public Op {
 public:
  explicit ScatterRowsOp(int64_t rows) : rows_(rows) {}
  std::string_view name() const override { return "scatter_rows"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckIndexed(in[0], "x", in[1], "ids");
    const int rank = in[1].rank();
    if (in[0].rank() < rank || !(in[0].shape().Prefix(rank) == in[1].shape())) {
      RefuseOperands("x begins with the dimensions of ids", "x", in[0], "ids", in[1]);
    }
    if (rows_ < 0) ThrowInvalidArgument(absl::StrCat("there are no ", rows_, " rows"));
    plan.outputs = {{in[0].dtype(), Replaced(in[0].shape(), 0, rank, {&rows_, 1})}};
    plan.backward_reads_inputs = 0b10;
  }
  void Forward(OpForward& f) const override {
    const Tensor& ids = f.inputs[1];
    kernels::IndexAdd(kernels::Pack(f.inputs[0]).Reshape(Rows(f.inputs[0].shape(), ids)), 0, ids,
                      f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const TensorSpec& x = b.input_spec(0);
    const Tensor grad = Tensor::Empty(b.grad().device(), x.dtype, Rows(x.shape, b.input(1)));
    kernels::IndexSelect(b.grad(), 0, b.input(1), grad);
    internal::ContributeCopy(b, 0, grad.Reshape(x.shape));
  }

 private:
  static Shape Rows(const Shape& shape, const Tensor& ids) {
    const int64_t count = ids.numel();
    return Replaced(shape, 0, ids.rank(), {&count, 1});
  }
  int64_t rows_;
};

// Whether `index` may choose from x along `dim`.
void CheckFits(const Tensor& x, int dim, const Tensor& index) {
  bool fits = x.rank() == index.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == dim || index.dim(i) <= x.dim(i);
  if (!fits) {
    RefuseOperands(
        absl::StrCat("the index has the rank of x, and extents within it but in dimension ", dim),
        "x", x, "index", index);
  }
}

// Inputs: x, index.
class GatherOp final : public Op {
 public:
  explicit GatherOp(int dim) : dim_(dim) {}
  std::string_view name() const override { return "gather"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckIndexed(in[0], "x", in[1], "index");
    CheckFits(in[0], DimOf(dim_, in[0], "x"), in[1]);
    plan.outputs = {{in[0].dtype(), in[1].shape()}};
    plan.backward_reads_inputs = 0b10;
  }
  void Forward(OpForward& f) const override {
    kernels::Gather(f.inputs[0], DimOf(dim_, f.inputs[0], "x"), f.inputs[1], f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const int rank = b.input_spec(0).shape.rank();
    const GradTarget to = b.target(0);
    kernels::ScatterAdd(b.grad(), dim_ < 0 ? dim_ + rank : dim_, b.input(1), to.tensor, to.write);
  }

 private:
  int dim_;
};

// Inputs: x, index, source.
class ScatterAddOp final : public Op {
 public:
  explicit ScatterAddOp(int dim) : dim_(dim) {}
  std::string_view name() const override { return "scatter_add"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    CheckIndexed(in[0], "x", in[1], "index");
    CheckFits(in[0], DimOf(dim_, in[0], "x"), in[1]);
    if (!(in[1].shape() == in[2].shape()) || in[0].dtype() != in[2].dtype()) {
      RefuseOperands("the source has the shape of the index, and the dtype of x", "index", in[1],
                     "the source", in[2]);
    }
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
    plan.backward_reads_inputs = 0b10;
  }
  void Forward(OpForward& f) const override {
    kernels::Copy(f.inputs[0], f.outputs[0]);
    kernels::ScatterAdd(f.inputs[2], DimOf(dim_, f.inputs[0], "x"), f.inputs[1], f.outputs[0],
                        kernels::Write::kAdd);
  }
  void Backward(OpBackward& b) const override {
    const TensorSpec& source = b.input_spec(2);
    if (b.needs(2)) {
      const Tensor grad = Tensor::Empty(b.grad().device(), source.dtype, source.shape);
      kernels::Gather(b.grad(), dim_ < 0 ? dim_ + source.shape.rank() : dim_, b.input(1), grad);
      internal::ContributeCopy(b, 2, grad);
    }
    if (b.needs(0)) b.Pass(0, b.grad());
  }

 private:
  int dim_;
};

// Inputs: mask, a, b.
class WhereOp final : public Op {
 public:
  std::string_view name() const override { return "where"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (!IsInteger(in[0])) RefuseOperand("a mask is i32 or i64", "mask", in[0]);
    Shape shape;
    if (!IsFloating(in[1].dtype()) || in[1].dtype() != in[2].dtype() ||
        !kernels::BroadcastShape(in[1].shape(), in[2].shape(), shape)) {
      RefuseOperands("operands need one float dtype and shapes that broadcast", "a", in[1], "b",
                     in[2]);
    }
    if (!kernels::BroadcastShape(shape, in[0].shape(), shape)) {
      RefuseOperands("the mask and the operands need shapes that broadcast", "mask", in[0], "a",
                     in[1]);
    }
    plan.outputs = {{in[1].dtype(), shape}};
    plan.backward_reads_inputs = 0b1;
  }
  void Forward(OpForward& f) const override {
    kernels::Where(f.inputs[0], f.inputs[1], f.inputs[2], f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    for (int i = 1; i < 3; ++i) {
      if (!b.needs(i)) continue;
      const auto chosen = [&](const Tensor& to, kernels::Write write) {
        kernels::Where(b.input(0), i == 1 ? b.grad() : Tensor(), i == 2 ? b.grad() : Tensor(), to,
                       write);
      };
      if (b.input_spec(i).shape == b.grad().shape()) {
        const GradTarget to = b.target(i);
        chosen(to.tensor, to.write);
        continue;
      }
      const Tensor grad = Tensor::Empty(b.grad().device(), b.grad().dtype(), b.grad().shape());
      chosen(grad, kernels::Write::kOverwrite);
      internal::ContributeSum(b, i, grad);
    }
  }
};

}  // namespace

Variable IndexSelect(const Variable& x, int dim, const Variable& ids, CallSite site) {
  return ApplyOne(IndexSelectOp(dim), {x, ids}, site);
}
Variable GatherRows(const Variable& x, const Variable& ids, CallSite site) {
  return ApplyOne(IndexSelectOp(0), {x, ids}, site);
}
Variable ScatterRows(const Variable& x, const Variable& ids, int64_t rows, CallSite site) {
  return ApplyOne(ScatterRowsOp(rows), {x, ids}, site);
}
Variable Gather(const Variable& x, int dim, const Variable& index, CallSite site) {
  return ApplyOne(GatherOp(dim), {x, index}, site);
}
Variable ScatterAdd(const Variable& x, int dim, const Variable& index, const Variable& source,
                    CallSite site) {
  return ApplyOne(ScatterAddOp(dim), {x, index, source}, site);
}
Variable Where(const Variable& mask, const Variable& a, const Variable& b, CallSite site) {
  return ApplyOne(WhereOp(), {mask, a, b}, site);
}

}  // namespace sherd
