#pragma once

#include <cstdint>
#include <string_view>

#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/autograd/loss/loss.h"

namespace sherd {

struct CausalLmLossOptions {
  // Labels with this value have no loss and do not count.
  int64_t ignore_index = -100;
  // How a batch's `labels` lie. A batch that carries shifted_labels is taken as that says.
  LabelMode labels = LabelMode::kShifted;
  // See kernels::CrossEntropyOptions. Both are summed over the same items.
  double label_smoothing = 0.0;
  double z_loss = 0.0;
  LabelsDevice labels_device = LabelsDevice::kRefuse;
};

// The cross-entropy of next-token prediction, summed over labelled tokens.
//
// With cumulative lengths, document ids or position ids in the batch, the first token of a document
// is not predicted from the one before it.
class CausalLmLoss final : public Loss {
 public:
  explicit CausalLmLoss(CausalLmLossOptions options = {});

  std::string_view name() const override { return "causal_lm_loss"; }
  // The positions that predict something, after shift, documents and ignored labels.
  int64_t Count(const LossLabels& labels) const override;

  // The same from the last hidden states and the head's weight, never holding logits as a whole;
  // see LinearCrossEntropy for shapes and cost. Errors: as operator().
  LossSum FromHidden(const Variable& hidden, const Variable& weight, const LossLabels& labels,
                     int64_t chunk_classes = 0, CallSite site = CallSite::Here()) const;

 protected:
  // Shapes: logits [B, T, V] (or any [..., V]), labels one i32 or i64 for each row. Cost: keeps the
  // logits and one number per row; softmax exists only inside the backward. Errors:
  // kInvalidArgument naming both operands if shapes differ, or the label out of range and its
  // place in the batch.
  LossSum Compute(const Variable& logits, const LossLabels& labels, CallSite site) const override;

 private:
  kernels::CrossEntropyOptions CrossEntropyOf() const;
  CausalLmLossOptions options_;
};

}  // namespace sherd
