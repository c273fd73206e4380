#pragma once

#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/autograd/loss/loss.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"

namespace classify {

// A loss of this program: cross-entropy with smoothed labels, and penalty |logits|^2. Items are
// sequences, all of which have a label.
class ClassifierLoss final : public sherd::Loss {
 public:
  struct Options {
    double smoothing = 0.0;
    double penalty = 0.0;
    sherd::LabelsDevice labels_device = sherd::LabelsDevice::kRefuse;
  };
  explicit ClassifierLoss(Options options)
      : sherd::Loss(options.labels_device), options_(options) {}

  std::string_view name() const override { return "classifier_loss"; }
  int64_t Count(const sherd::LossLabels& labels) const override { return labels.labels.numel(); }

 protected:
  sherd::LossSum Compute(const sherd::Variable& pooled_logits, const sherd::LossLabels& labels,
                         sherd::CallSite site) const override {
    const auto [sum, items] =
        CrossEntropy(pooled_logits, labels.labels, {.label_smoothing = options_.smoothing}, site);
    const sherd::Variable squares = Sum(Mul(pooled_logits, pooled_logits));
    return {Add(sum, Cast(Scale(squares, options_.penalty), sherd::DType::kF64)), items};
  }

 private:
  Options options_;
};

}  // namespace classify
