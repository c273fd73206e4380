#include "sherd/autograd/loss/cross_entropy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/loss/labels.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd {
namespace {

using kernels::CrossEntropyOptions;
using kernels::Write;

constexpr int64_t kChunkBytes = int64_t{32} << 20;
constexpr int64_t kChunkMultiple = 64;

DType StatisticsOf(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

bool Fits(const Tensor& targets, int64_t rows) {
  return (targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64) &&
         targets.numel() == rows;
}

void CheckOptions(const CrossEntropyOptions& options) {
  if (!(options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0)) {
    ThrowInvalidArgument(
        absl::StrCat("label_smoothing lies in [0, 1], got ", options.label_smoothing));
  }
  if (!(options.z_loss >= 0.0)) {
    ThrowInvalidArgument(absl::StrCat("z_loss is not negative, got ", options.z_loss));
  }
}

class CrossEntropyOp final : public Op {
 public:
  explicit CrossEntropyOp(const CrossEntropyOptions& options) : options_(options) {}
  std::string_view name() const override { return "cross_entropy"; }
  OpKind kind() const override { return OpKind::kLoss; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& logits = in[0];
    const Tensor& targets = in[1];
    if (!IsFloating(logits.dtype()) || logits.rank() < 1 || !Fits(targets, logits.shape().rows())) {
      RefuseOperands("float logits [..., V] need one i32 or i64 label for each row", "logits",
                     logits, "labels", targets);
    }
    CheckOptions(options_);
    plan.outputs = {{DType::kF64, {1}}};
    plan.inner = {{StatisticsOf(logits.dtype()), {targets.numel()}}};
    plan.backward_reads_inputs = 0b11;
  }
  void Forward(OpForward& f) const override {
    const kernels::CrossEntropyResult result =
        kernels::CrossEntropy(f.inputs[0], f.inputs[1], options_, f.inner[0]);
    kernels::Fill(f.outputs[0], result.loss_sum);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::CrossEntropyBackward(b.input(0), b.input(1), options_, b.inner(0),
                                  b.grad().Item<double>(), target.tensor, target.write);
  }

 private:
  CrossEntropyOptions options_;
};

class LinearCrossEntropyOp final : public Op {
 public:
  explicit LinearCrossEntropyOp(const LinearCrossEntropyOptions& options) : options_(options) {}
  std::string_view name() const override { return "linear_cross_entropy"; }
  OpKind kind() const override { return OpKind::kLoss; }

  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& hidden = in[0];
    const Tensor& weight = in[1];
    const Tensor& targets = in[2];
    if (hidden.rank() < 1 || weight.rank() != 2 || hidden.shape().back() != weight.dim(1) ||
        hidden.dtype() != weight.dtype() || !IsFloating(hidden.dtype())) {
      RefuseOperands("hidden [..., C] and weight [V, C] need one C and one float dtype", "hidden",
                     hidden, "weight", weight);
    }
    if (!Fits(targets, hidden.shape().rows())) {
      RefuseOperands("hidden [..., C] needs one i32 or i64 label for each row", "hidden", hidden,
                     "labels", targets);
    }
    CheckOptions(options_.cross_entropy);
    if (options_.chunk_classes < 0) {
      ThrowInvalidArgument(absl::StrCat("chunk_classes is negative: ", options_.chunk_classes));
    }
    plan.outputs = {{DType::kF64, {1}}};
    plan.inner = {{StatisticsOf(hidden.dtype()), {targets.numel()}}};
    plan.backward_reads_inputs = 0b111;
    plan.flops = 2.0 * static_cast<double>(targets.numel()) * static_cast<double>(weight.numel());
  }

  void Forward(OpForward& f) const override {
    const Tensor hidden = Rows(f.inputs[0]);
    const Tensor weight = kernels::PackRows(f.inputs[1]);
    kernels::CrossEntropyPieces pieces(f.inputs[2], weight.dim(0), options_.cross_entropy);
    ForEachChunk(hidden, weight, [&](const Tensor& logits, const Tensor&, int64_t first) {
      pieces.Add(logits, first);
    });
    kernels::Fill(f.outputs[0], pieces.Finish(f.inner[0]).loss_sum);
  }

  void Backward(OpBackward& b) const override {
    const Tensor hidden = Rows(b.input(0));
    const Tensor weight = kernels::PackRows(b.input(1));
    const kernels::CrossEntropyPieces pieces(b.input(2), weight.dim(0), options_.cross_entropy);
    const double scale = b.grad().Item<double>();
    // The gradient of hidden is a sum over chunks: in f32 for 16-bit elements, and apart where
    // weight is the same variable, whose target is being written meanwhile.
    const bool apart = SizeOf(hidden.dtype()) == 2 || (b.needs(0) && b.same(0, 1));
    GradTarget to_hidden, to_weight;
    if (b.needs(0)) {
      to_hidden = apart ? GradTarget{Tensor::Empty(hidden.device(), StatisticsOf(hidden.dtype()),
                                                   hidden.shape(), MemoryCategory::kWorkspace),
                                     Write::kOverwrite}
                        : b.target(0, GradDType::kWide);
    }
    if (b.needs(1)) to_weight = b.target(1, GradDType::kWide);
    ForEachChunk(hidden, weight, [&](const Tensor& logits, const Tensor& rows, int64_t first) {
      pieces.Backward(logits, first, b.inner(0), scale, logits);
      if (b.needs(1)) {
        kernels::Matmul(logits, true, hidden, false,
                        to_weight.tensor.Slice(0, first, first + rows.dim(0)), to_weight.write);
      }
      if (b.needs(0)) {
        kernels::Matmul(logits, false, rows, false, Merged(to_hidden.tensor),
                        first == 0 ? to_hidden.write : Write::kAdd);
      }
    });
    if (b.needs(0) && apart) {
      const GradTarget target = b.target(0, GradDType::kAnyFloat);
      kernels::Cast(to_hidden.tensor.Reshape(target.tensor.shape()), target.tensor, target.write);
    }
  }

 private:
  static Tensor Merged(const Tensor& x) { return x.Reshape({x.shape().rows(), x.shape().back()}); }
  // For reading, packed once and not for every chunk.
  static Tensor Rows(const Tensor& x) { return Merged(kernels::PackRows(x)); }

  // Calls f(logits, rows of weight, first class) with the logits of one chunk after another, in a
  // buffer that f may overwrite.
  template <typename F>
  void ForEachChunk(const Tensor& hidden, const Tensor& weight, const F& f) const {
    const int64_t rows = hidden.dim(0), classes = weight.dim(0);
    const int64_t row_bytes = std::max<int64_t>(1, rows * SizeOf(hidden.dtype()));
    int64_t chunk = options_.chunk_classes;
    if (chunk == 0) {
      chunk = std::max<int64_t>(1, kChunkBytes / row_bytes / kChunkMultiple) * kChunkMultiple;
    }
    chunk = std::min(chunk, classes);
    const Tensor buffer =
        Tensor::Empty(hidden.device(), hidden.dtype(), {rows * chunk}, MemoryCategory::kWorkspace);
    for (int64_t first = 0; first < classes; first += chunk) {
      const int64_t n = std::min(chunk, classes - first);
      const Tensor logits = buffer.Slice(0, 0, rows * n).Reshape({rows, n});
      const Tensor part = weight.Slice(0, first, first + n);
      kernels::Matmul(hidden, false, part, true, logits);
      f(logits, part, first);
    }
  }

  LinearCrossEntropyOptions options_;
};

}  // namespace

LossSum CrossEntropy(const Variable& logits, const Tensor& targets,
                     const CrossEntropyOptions& options, CallSite site) {
  const Variable value = ApplyOne(CrossEntropyOp(options), {logits, Variable(targets)}, site);
  return {value, CountTargets(targets, options.ignore_index)};
}

LossSum LinearCrossEntropy(const Variable& hidden, const Variable& weight, const Tensor& targets,
                           const LinearCrossEntropyOptions& options, CallSite site) {
  const Variable value =
      ApplyOne(LinearCrossEntropyOp(options), {hidden, weight, Variable(targets)}, site);
  return {value, CountTargets(targets, options.cross_entropy.ignore_index)};
}

}  // namespace sherd
