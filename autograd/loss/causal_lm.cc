#include "sherd/autograd/loss/causal_lm.h"

#include "sherd/autograd/apply.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

CausalLmLoss::CausalLmLoss(CausalLmLossOptions options)
    : Loss(options.labels_device), options_(options) {}

kernels::CrossEntropyOptions CausalLmLoss::CrossEntropyOf() const {
  return {.ignore_index = options_.ignore_index,
          .label_smoothing = options_.label_smoothing,
          .z_loss = options_.z_loss};
}

int64_t CausalLmLoss::Count(const LossLabels& labels) const {
  return CountTargets(TokenTargets(labels, options_.labels, options_.ignore_index),
                      options_.ignore_index);
}

LossSum CausalLmLoss::Compute(const Variable& logits, const LossLabels& labels,
                              CallSite site) const {
  const Tensor targets = TokenTargets(labels, options_.labels, options_.ignore_index);
  if (logits.value().rank() > 0) {
    CheckClasses(labels, logits.shape().back(), options_.ignore_index);
  }
  return CrossEntropy(logits, targets, CrossEntropyOf(), site);
}

LossSum CausalLmLoss::FromHidden(const Variable& hidden, const Variable& weight,
                                 const LossLabels& labels, int64_t chunk_classes,
                                 CallSite site) const {
  try {
    const LossLabels here = OnDeviceOf(hidden, labels);
    const Tensor targets = TokenTargets(here, options_.labels, options_.ignore_index);
    if (weight.defined() && weight.value().rank() == 2) {
      CheckClasses(here, weight.dim(0), options_.ignore_index);
    }
    return LinearCrossEntropy(hidden, weight, targets, {CrossEntropyOf(), chunk_classes}, site);
  } catch (const Error& error) {
    throw error.With(
        {.op = std::string(name()), .module_path = internal::CurrentModulePath(), .site = site});
  }
}

}  // namespace sherd
