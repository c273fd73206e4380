#include "sherd/autograd/ops/transformer.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/embedding.h"
#include "sherd/runtime/kernels/rms_norm.h"

namespace sherd {
namespace {

// Statistics of a row are kept in f32, in f64 for f64.
DType StatisticsOf(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

class EmbeddingOp final : public Op {
 public:
  std::string_view name() const override { return "embedding"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& ids = in[0];
    const Tensor& table = in[1];
    const bool integer = ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64;
    if (!integer || table.rank() != 2 || !IsFloating(table.dtype())) {
      RefuseOperands("ids are i32 or i64 and the table is a float [V, C]", "ids", ids, "table",
                     table);
    }
    plan.outputs = {{table.dtype(), ids.shape().Append(table.dim(1))}};
    plan.backward_reads_inputs = 0b01;
  }
  void Forward(OpForward& f) const override {
    kernels::Embedding(f.inputs[0], f.inputs[1], f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(1, GradDType::kWide);
    kernels::EmbeddingBackward(b.grad(), b.input(0), target.tensor, target.write);
  }
};

class RmsNormOp final : public Op {
 public:
  explicit RmsNormOp(double eps) : eps_(eps) {}
  std::string_view name() const override { return "rms_norm"; }
  OpKind kind() const override { return OpKind::kNorm; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& x = in[0];
    const Tensor& weight = in[1];
    if (x.rank() < 1 || weight.rank() != 1 || x.shape().back() != weight.dim(0) ||
        x.dtype() != weight.dtype() || !IsFloating(x.dtype())) {
      RefuseOperands("x [..., C] and weight [C] need one C and one float dtype", "x", x, "weight",
                     weight);
    }
    plan.outputs = {{x.dtype(), x.shape()}};
    plan.inner = {{StatisticsOf(x.dtype()), {x.shape().rows()}}};
    plan.backward_reads_inputs = 0b11;
  }
  void Forward(OpForward& f) const override {
    kernels::RmsNorm(f.inputs[0], f.inputs[1], eps_, f.outputs[0], f.inner[0]);
  }
  void Backward(OpBackward& b) const override {
    if (b.same(0, 1)) {
      Write(b, b.target(0), GradTarget{});
      Write(b, GradTarget{}, b.target(1, GradDType::kWide));
      return;
    }
    Write(b, b.needs(0) ? b.target(0) : GradTarget{},
          b.needs(1) ? b.target(1, GradDType::kWide) : GradTarget{});
  }

 private:
  static void Write(OpBackward& b, const GradTarget& x, const GradTarget& weight) {
    kernels::RmsNormBackward(b.grad(), b.input(0), b.input(1), b.inner(0), x.tensor, x.write,
                             weight.tensor, weight.write);
  }
  double eps_;
};

class RopeOp final : public Op {
 public:
  RopeOp(kernels::RopeTables tables, int64_t first_position)
      : tables_(std::move(tables)), first_position_(first_position) {}
  std::string_view name() const override { return "rope"; }
  OpKind kind() const override { return OpKind::kElementwise; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& x = in[0];
    if (x.rank() != 4 || x.dim(3) != 2 * tables_.cos.dim(1) || !IsFloating(x.dtype()) ||
        tables_.cos.dtype() != StatisticsOf(x.dtype())) {
      RefuseOperands("x [B, T, H, D] and the tables [positions, D/2] need one D and dtype", "x", x,
                     "the cosine table", tables_.cos);
    }
    if (first_position_ < 0 || first_position_ + x.dim(1) > tables_.cos.dim(0)) {
      RefuseOperands(absl::StrCat("positions ", first_position_, " to ", first_position_ + x.dim(1),
                                  " are not all in the tables"),
                     "x", x, "the cosine table", tables_.cos);
    }
    plan.outputs = {{x.dtype(), x.shape()}};
  }
  void Forward(OpForward& f) const override {
    kernels::Rope(f.inputs[0], tables_.cos, tables_.sin, first_position_, false, f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::Rope(b.grad(), tables_.cos, tables_.sin, first_position_, true, target.tensor,
                  target.write);
  }

 private:
  kernels::RopeTables tables_;
  int64_t first_position_;
};

}  // namespace

Variable EmbeddingLookup(const Variable& ids, const Variable& table, CallSite site) {
  return ApplyOne(EmbeddingOp(), {ids, table}, site);
}

Variable RmsNorm(const Variable& x, const Variable& weight, double eps, CallSite site) {
  return ApplyOne(RmsNormOp(eps), {x, weight}, site);
}

Variable Rope(const Variable& x, const kernels::RopeTables& tables, int64_t first_position,
              CallSite site) {
  return ApplyOne(RopeOp(tables, first_position), {x}, site);
}

}  // namespace sherd
