#include "sherd/autograd/loss/classification.h"

#include "sherd/autograd/apply.h"
#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/pointwise_loss.h"

namespace sherd {
namespace {

using kernels::PointwiseLoss;

class PointwiseLossOp final : public Op {
 public:
  PointwiseLossOp(PointwiseLoss loss, std::optional<double> ignored)
      : loss_(loss), ignored_(ignored) {}
  std::string_view name() const override {
    return loss_ == PointwiseLoss::kSquaredError ? "squared_error" : "bce_with_logits";
  }
  OpKind kind() const override { return OpKind::kLoss; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (!IsFloating(in[0].dtype()) || !IsFloating(in[1].dtype()) ||
        !(in[0].shape() == in[1].shape())) {
      RefuseOperands("floats need one float label for each element", "logits", in[0], "labels",
                     in[1]);
    }
    plan.outputs = {{DType::kF64, {1}}};
    plan.backward_reads_inputs = 0b11;
  }
  void Forward(OpForward& f) const override {
    kernels::Fill(f.outputs[0],
                  kernels::PointwiseLossSum(loss_, f.inputs[0], f.inputs[1], ignored_).loss_sum);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::PointwiseLossBackward(loss_, b.input(0), b.input(1), ignored_, b.grad().Item<double>(),
                                   target.tensor, target.write);
  }

 private:
  PointwiseLoss loss_;
  std::optional<double> ignored_;
};

// The elements of float labels that are not ignored.
int64_t CountElements(const Tensor& labels, std::optional<double> ignored) {
  if (!labels.defined() || !IsFloating(labels.dtype())) {
    RefuseOperand("labels are floats", "labels", labels);
  }
  if (!ignored) return labels.numel();
  const Tensor wide = Tensor::Empty(labels.device(), DType::kF64, labels.shape());
  kernels::Cast(labels, wide);
  int64_t count = 0;
  for (double label : wide.ToHost<double>()) count += label != *ignored;
  return count;
}

LossSum SumElements(PointwiseLoss loss, const Variable& output, Tensor labels,
                    std::optional<double> ignored, CallSite site) {
  const int64_t items = CountElements(labels, ignored);
  const Shape& shape = output.shape();
  if (labels.rank() + 1 == shape.rank() && shape.back() == 1 && labels.numel() == shape.numel()) {
    labels = labels.Reshape(shape);
  }
  // The labels are a constant, whatever they were before.
  return {ApplyOne(PointwiseLossOp(loss, ignored), {output, Variable(labels)}, site), items};
}

}  // namespace

TokenClassificationLoss::TokenClassificationLoss(TokenLossOptions options)
    : Loss(options.labels_device), options_(options) {}

int64_t TokenClassificationLoss::Count(const LossLabels& labels) const {
  return CountTargets(labels.labels, options_.ignore_index);
}

LossSum TokenClassificationLoss::Compute(const Variable& logits, const LossLabels& labels,
                                         CallSite site) const {
  const Tensor targets = TokenTargets(labels, LabelMode::kAligned, options_.ignore_index);
  if (logits.value().rank() > 0) {
    CheckClasses(labels.labels, logits.shape().back(), options_.ignore_index);
  }
  return CrossEntropy(logits, targets,
                      {.ignore_index = options_.ignore_index,
                       .label_smoothing = options_.label_smoothing,
                       .z_loss = options_.z_loss},
                      site);
}

SequenceClassificationLoss::SequenceClassificationLoss(SequenceClassificationOptions options)
    : Loss(options.labels_device), options_(options) {}

int64_t SequenceClassificationLoss::Count(const LossLabels& labels) const {
  switch (options_.problem) {
    case SequenceProblem::kSingleLabel:
      return CountTargets(labels.labels, options_.ignore_index);
    case SequenceProblem::kMultiLabel:
      return CountElements(labels.labels, static_cast<double>(options_.ignore_index));
    case SequenceProblem::kRegression:
      break;
  }
  return CountElements(labels.labels, options_.ignore_value);
}

LossSum SequenceClassificationLoss::Compute(const Variable& logits, const LossLabels& labels,
                                            CallSite site) const {
  if (logits.value().rank() != 2) {
    RefuseOperands("pooled logits are [B, K]", "logits", logits.value(), "labels", labels.labels);
  }
  switch (options_.problem) {
    case SequenceProblem::kSingleLabel:
      CheckClasses(labels.labels, logits.dim(1), options_.ignore_index);
      return CrossEntropy(
          logits, TokenTargets(labels, LabelMode::kAligned, options_.ignore_index),
          {.ignore_index = options_.ignore_index, .label_smoothing = options_.label_smoothing},
          site);
    case SequenceProblem::kMultiLabel:
      return SumElements(PointwiseLoss::kBceWithLogits, logits, labels.labels,
                         static_cast<double>(options_.ignore_index), site);
    case SequenceProblem::kRegression:
      break;
  }
  return SumElements(PointwiseLoss::kSquaredError, logits, labels.labels, options_.ignore_value,
                     site);
}

MseLoss::MseLoss(MseLossOptions options) : Loss(options.labels_device), options_(options) {}

int64_t MseLoss::Count(const LossLabels& labels) const {
  return CountElements(labels.labels, options_.ignore_value);
}

LossSum MseLoss::Compute(const Variable& output, const LossLabels& labels, CallSite site) const {
  return SumElements(PointwiseLoss::kSquaredError, output, labels.labels, options_.ignore_value,
                     site);
}

}  // namespace sherd
