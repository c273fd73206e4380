#include "sherd/autograd/ops/shape.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/internal/contribute.h"
#include "sherd/autograd/ops/internal/dims.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/reduce.h"

namespace sherd {
namespace {

class ReshapeOp final : public Op {
 public:
  explicit ReshapeOp(const Shape& shape) : shape_(shape) {}
  std::string_view name() const override { return "reshape"; }
  OpKind kind() const override { return OpKind::kView; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    in[0].Reshape(shape_);
    plan.outputs = {{in[0].dtype(), shape_}};
    plan.view = true;
  }
  void Forward(OpForward& f) const override { f.outputs[0] = f.inputs[0].Reshape(shape_); }
  void Backward(OpBackward& b) const override {
    b.Pass(0, b.grad().Reshape(b.input_spec(0).shape));
  }

 private:
  Shape shape_;
};

class SplitOp final : public Op {
 public:
  SplitOp(int dim, int64_t begin, std::vector<int64_t> sizes, bool whole)
      : dim_(dim), begin_(begin), sizes_(std::move(sizes)), whole_(whole) {}
  std::string_view name() const override { return whole_ ? "split" : "slice"; }
  OpKind kind() const override { return OpKind::kView; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
    if (whole_ && (dim_ < 0 || dim_ >= in[0].rank() || total != in[0].dim(dim_))) {
      RefuseOperand(absl::StrCat("sizes add up to ", total, ", not to dimension ", dim_), "x",
                    in[0]);
    }
    in[0].Slice(dim_, begin_, begin_ + total);
    for (int64_t size : sizes_) {
      Shape shape = in[0].shape();
      shape[dim_] = size;
      plan.outputs.push_back({in[0].dtype(), shape});
    }
    plan.view = true;
  }
  void Forward(OpForward& f) const override {
    int64_t begin = begin_;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      f.outputs[i] = f.inputs[0].Slice(dim_, begin, begin + sizes_[i]);
      begin += sizes_[i];
    }
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0, GradDType::kAnyFloat);
    const bool overwrite = target.write == kernels::Write::kOverwrite;
    if (overwrite && !whole_) kernels::Fill(target.tensor, 0.0);
    int64_t begin = begin_;
    for (int i = 0; i < static_cast<int>(sizes_.size()); ++i) {
      const int64_t size = sizes_[static_cast<size_t>(i)];
      const Tensor part = target.tensor.Slice(dim_, begin, begin + size);
      begin += size;
      if (b.grad(i).defined()) {
        kernels::Cast(b.grad(i), part, target.write);
      } else if (overwrite) {
        kernels::Fill(part, 0.0);
      }
    }
  }

 private:
  int dim_;
  int64_t begin_;
  std::vector<int64_t> sizes_;
  bool whole_;
};

class ConcatOp final : public Op {
 public:
  explicit ConcatOp(int dim) : dim_(dim) {}
  std::string_view name() const override { return "concat"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (dim_ < 0 || dim_ >= in[0].rank()) {
      RefuseOperand(absl::StrCat("there is no dimension ", dim_), "the first operand", in[0]);
    }
    Shape shape = in[0].shape();
    for (size_t i = 1; i < in.size(); ++i) {
      Shape same = in[i].rank() == shape.rank() ? in[i].shape() : Shape();
      if (same.rank() > dim_) same[dim_] = in[0].dim(dim_);
      if (!(same == in[0].shape()) || in[i].dtype() != in[0].dtype()) {
        RefuseOperands(absl::StrCat("operands agree but for dimension ", dim_), "operand 0", in[0],
                       absl::StrCat("operand ", i), in[i]);
      }
      shape[dim_] += in[i].dim(dim_);
    }
    plan.outputs = {{in[0].dtype(), shape}};
  }
  void Forward(OpForward& f) const override {
    int64_t begin = 0;
    for (const Tensor& input : f.inputs) {
      kernels::Copy(input, f.outputs[0].Slice(dim_, begin, begin + input.dim(dim_)));
      begin += input.dim(dim_);
    }
  }
  void Backward(OpBackward& b) const override {
    int64_t begin = 0;
    for (int i = 0; begin < b.grad().dim(dim_); ++i) {
      const int64_t size = b.input_spec(i).shape[dim_];
      if (b.needs(i)) {
        internal::ContributeCopy(b, i, b.grad().Slice(dim_, begin, begin + size));
      }
      begin += size;
    }
  }

 private:
  int dim_;
};

class PermuteOp final : public Op {
 public:
  PermuteOp(std::span<const int> order, bool two)
      : rank_(static_cast<int>(order.size())), two_(two) {
    std::copy(order.begin(), order.end(), order_.begin());
  }
  std::string_view name() const override { return two_ ? "transpose" : "permute"; }
  OpKind kind() const override { return OpKind::kView; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), View(in[0]).shape()}};
    plan.view = true;
  }
  void Forward(OpForward& f) const override { f.outputs[0] = View(f.inputs[0]); }
  void Backward(OpBackward& b) const override {
    if (two_) return internal::ContributeCopy(b, 0, View(b.grad()));
    std::array<int, Shape::kMaxRank> back{};
    for (int i = 0; i < rank_; ++i) back[static_cast<size_t>(order_[static_cast<size_t>(i)])] = i;
    internal::ContributeCopy(b, 0, b.grad().Permute({back.data(), static_cast<size_t>(rank_)}));
  }

 private:
  Tensor View(const Tensor& x) const {
    if (!two_) return x.Permute({order_.data(), static_cast<size_t>(rank_)});
    return x.Transpose(internal::DimOf(order_[0], x, "x"), internal::DimOf(order_[1], x, "x"));
  }
  std::array<int, Shape::kMaxRank> order_{};
  int rank_;
  bool two_;  // two dimensions to exchange, instead of an order of all
};

class ExpandOp final : public Op {
 public:
  explicit ExpandOp(const Shape& shape) : shape_(shape) {}
  std::string_view name() const override { return "expand"; }
  OpKind kind() const override { return OpKind::kView; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    in[0].Expand(shape_);
    plan.outputs = {{in[0].dtype(), shape_}};
    plan.view = true;
  }
  void Forward(OpForward& f) const override { f.outputs[0] = f.inputs[0].Expand(shape_); }
  void Backward(OpBackward& b) const override { internal::ContributeSum(b, 0, b.grad()); }

 private:
  Shape shape_;
};

class PadOp final : public Op {
 public:
  PadOp(std::span<const int64_t> pads, double value)
      : pads_(pads.begin(), pads.end()), value_(value) {}
  std::string_view name() const override { return "pad"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const bool pairs = pads_.size() % 2 == 0 && static_cast<int>(pads_.size()) <= 2 * in[0].rank();
    if (!pairs || std::any_of(pads_.begin(), pads_.end(), [](int64_t n) { return n < 0; })) {
      RefuseOperand(absl::StrCat("[", absl::StrJoin(pads_, ", "),
                                 "] are no numbers before and after in the last dimensions"),
                    "x", in[0]);
    }
    Shape shape = in[0].shape();
    for (size_t i = 0; i < pads_.size(); ++i) {
      shape[shape.rank() - 1 - static_cast<int>(i / 2)] += pads_[i];
    }
    plan.outputs = {{in[0].dtype(), shape}};
  }
  void Forward(OpForward& f) const override {
    kernels::Fill(f.outputs[0], value_);
    kernels::Copy(f.inputs[0], Inside(f.outputs[0], f.inputs[0].shape()));
  }
  void Backward(OpBackward& b) const override {
    internal::ContributeCopy(b, 0, Inside(b.grad(), b.input_spec(0).shape));
  }

 private:
  Tensor Inside(const Tensor& padded, const Shape& shape) const {
    Tensor inside = padded;
    for (size_t i = 0; i < pads_.size(); i += 2) {
      const int dim = shape.rank() - 1 - static_cast<int>(i / 2);
      inside = inside.Slice(dim, pads_[i], pads_[i] + shape[dim]);
    }
    return inside;
  }
  std::vector<int64_t> pads_;
  double value_;
};

class SumOp final : public Op {
 public:
  std::string_view name() const override { return "sum"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (!IsFloating(in[0].dtype())) RefuseOperand("a float tensor is needed", "x", in[0]);
    plan.outputs = {{in[0].dtype(), {1}}};
  }
  void Forward(OpForward& f) const override {
    kernels::Fill(f.outputs[0], kernels::Sum(f.inputs[0]));
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0, GradDType::kAnyFloat);
    const Tensor grad = b.grad();
    const double value = kernels::Sum(grad);
    if (target.write == kernels::Write::kOverwrite) {
      kernels::Fill(target.tensor, value);
      return;
    }
    const Tensor filled =
        Tensor::Empty(grad.device(), target.tensor.dtype(), target.tensor.shape());
    kernels::Fill(filled, value);
    kernels::Copy(filled, target.tensor, kernels::Write::kAdd);
  }
};

}  // namespace

Variable Reshape(const Variable& x, const Shape& shape, CallSite site) {
  return ApplyOne(ReshapeOp(shape), {x}, site);
}

Variable Slice(const Variable& x, int dim, int64_t begin, int64_t end, CallSite site) {
  return ApplyOne(SplitOp(dim, begin, std::vector<int64_t>{end - begin}, false), {x}, site);
}

std::vector<Variable> Split(const Variable& x, int dim, std::span<const int64_t> sizes,
                            CallSite site) {
  return Apply(SplitOp(dim, 0, std::vector<int64_t>(sizes.begin(), sizes.end()), true), {&x, 1},
               site);
}

Variable Concat(std::span<const Variable> xs, int dim, CallSite site) {
  if (xs.empty())
    ThrowInvalidArgument("at least one operand is needed", {.op = "concat", .site = site});
  return Apply(ConcatOp(dim), xs, site)[0];
}

Variable Stack(std::span<const Variable> xs, int dim, CallSite site) {
  if (xs.empty()) {
    ThrowInvalidArgument("at least one operand is needed", {.op = "stack", .site = site});
  }
  std::vector<Variable> parts;
  const int rank = xs[0].value().rank() + 1;
  const int at = dim < 0 ? dim + rank : dim;
  for (const Variable& x : xs) {
    std::vector<int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
    if (at < 0 || at > static_cast<int>(extents.size())) {
      ThrowInvalidArgument(
          absl::StrCat("there is no dimension ", dim, " in a stack of ", x.value().ToString()),
          {.op = "stack", .site = site});
    }
    extents.insert(extents.begin() + at, 1);
    parts.push_back(Reshape(x, Shape(extents), site));
  }
  return Concat(parts, at, site);
}

Variable Transpose(const Variable& x, int a, int b, CallSite site) {
  return ApplyOne(PermuteOp(std::array{a, b}, true), {x}, site);
}

Variable Permute(const Variable& x, std::span<const int> order, CallSite site) {
  if (order.size() > Shape::kMaxRank) {
    ThrowInvalidArgument("an order of more dimensions than a tensor has",
                         {.op = "permute", .site = site});
  }
  return ApplyOne(PermuteOp(order, false), {x}, site);
}

Variable Expand(const Variable& x, const Shape& shape, CallSite site) {
  return ApplyOne(ExpandOp(shape), {x}, site);
}

Variable Pad(const Variable& x, std::span<const int64_t> pads, double value, CallSite site) {
  return ApplyOne(PadOp(pads, value), {x}, site);
}

Variable Sum(const Variable& x, CallSite site) { return ApplyOne(SumOp(), {x}, site); }

}  // namespace sherd
