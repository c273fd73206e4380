#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sherd/autograd/loss/loss.h"

namespace sherd {

struct TokenLossOptions {
  // Labels with this value have no loss and do not count.
  int64_t ignore_index = -100;
  // See kernels::CrossEntropyOptions. Both are summed over the same items.
  double label_smoothing = 0.0;
  double z_loss = 0.0;
  LabelsDevice labels_device = LabelsDevice::kRefuse;
};

// The cross-entropy of each position with a label of its own, summed over labelled positions;
// nothing is shifted. Tags of tokens, and decoders whose labels lie beside their inputs.
class TokenClassificationLoss : public Loss {
 public:
  explicit TokenClassificationLoss(TokenLossOptions options = {});
  std::string_view name() const override { return "token_classification_loss"; }
  int64_t Count(const LossLabels& labels) const override;

 protected:
  // Shapes: logits [..., K], labels one i32 or i64 for each row. Errors: kInvalidArgument naming
  // both operands, or the label out of range and its place.
  LossSum Compute(const Variable& logits, const LossLabels& labels, CallSite site) const override;

 private:
  TokenLossOptions options_;
};

// The cross-entropy of masked tokens: labels are ignore_index everywhere else.
class MaskedLmLoss final : public TokenClassificationLoss {
 public:
  using TokenClassificationLoss::TokenClassificationLoss;
  std::string_view name() const override { return "masked_lm_loss"; }
};

// What a classifier of sequences is asked.
enum class SequenceProblem : uint8_t {
  kSingleLabel,  // one class of K each: cross-entropy; items are labelled sequences
  kMultiLabel,   // K questions each: the cross-entropy of each sigmoid; items are labelled elements
  kRegression,   // K numbers each: squared error; items are labelled elements
};

struct SequenceClassificationOptions {
  SequenceProblem problem = SequenceProblem::kSingleLabel;
  // Class ids and 0/1 labels with this value have no loss and do not count.
  int64_t ignore_index = -100;
  // The same for numbers of a regression, where every value may be a label; none unless given.
  std::optional<double> ignore_value = std::nullopt;
  double label_smoothing = 0.0;  // of kSingleLabel; see kernels::CrossEntropyOptions
  LabelsDevice labels_device = LabelsDevice::kRefuse;
};

// A loss of whole sequences, from pooled logits (see pooling.h).
//
// The cross-entropy of sigmoids is computed from logits, so it is finite for every finite one.
// Labels are constants: no gradient reaches them.
class SequenceClassificationLoss final : public Loss {
 public:
  explicit SequenceClassificationLoss(SequenceClassificationOptions options = {});
  std::string_view name() const override { return "sequence_classification_loss"; }
  int64_t Count(const LossLabels& labels) const override;

 protected:
  // Shapes: pooled logits [B, K]; labels [B] of i32 or i64, or [B, K] floats (also [B] where K is
  // 1). Errors: kInvalidArgument naming both operands, a class out of range and its place, or a
  // label of kMultiLabel outside [0, 1].
  LossSum Compute(const Variable& logits, const LossLabels& labels, CallSite site) const override;

 private:
  SequenceClassificationOptions options_;
};

struct MseLossOptions {
  // Labels with this value have no loss and do not count; none unless given.
  std::optional<double> ignore_value = std::nullopt;
  LabelsDevice labels_device = LabelsDevice::kRefuse;
};

// The squared error, summed over elements; items are elements too, so that the mean a window makes
// is that of PyTorch's mse_loss. Computed in f64. No gradient reaches the labels.
class MseLoss final : public Loss {
 public:
  explicit MseLoss(MseLossOptions options = {});
  std::string_view name() const override { return "mse_loss"; }
  int64_t Count(const LossLabels& labels) const override;

 protected:
  // Shapes: output and labels of one shape, any two float dtypes. Errors: kInvalidArgument naming
  // both operands.
  LossSum Compute(const Variable& output, const LossLabels& labels, CallSite site) const override;

 private:
  MseLossOptions options_;
};

}  // namespace sherd
