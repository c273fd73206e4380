#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sherd/runtime/core/tensor.h"

namespace sherd {

// How token labels lie against the logits of a language model.
enum class LabelMode : uint8_t {
  // labels[b, t] is what position t predicts: the batch was shifted when it was made.
  kShifted,
  // labels are the token ids as they are; position t predicts labels[b, t + 1], the last position
  // nothing. The shift happens on the labels, logits are not copied.
  kShiftInside,
  // labels[b, t] belongs to position t, and documents do not matter: encoder-decoder models,
  // masked language models, tags of tokens.
  kAligned,
};

// What a loss does with labels on another device than the model's output.
enum class LabelsDevice : uint8_t {
  kRefuse,  // an error that names both operands
  kMove,    // copies the labels: a copy and, from an accelerator, a wait each step
};

// What a batch carries for its loss. Made from a plain tensor of labels where there is no more.
//
// Of a packed row, in which documents follow each other, any one of three things tells where they
// begin; the first token of a document is nobody's target. A handle: cheap to copy.
struct LossLabels {
  LossLabels() = default;
  LossLabels(Tensor labels) : labels(std::move(labels)) {}  // NOLINT(google-explicit-constructor)

  // i32 or i64 class ids, [B, T] or [B], or floats where a loss says so.
  Tensor labels;
  // As `labels` in mode kShifted. Wins in a causal loss, whatever its mode.
  Tensor shifted_labels;
  // i32 or i64 with the shape of the labels: the position of each token in its document. A document
  // begins where it does not go on by one.
  Tensor position_ids;
  // i32 or i64 with the shape of the labels: a document begins where it changes.
  Tensor document_ids;
  // i32 or i64 [documents + 1]: cumulative lengths over the flattened labels, from 0, ascending.
  Tensor cu_seqlens;
  // Whatever a loss of yours wants besides, by name.
  std::vector<std::pair<std::string, Tensor>> extra;

  // The extra tensor of that name. Errors: kInvalidArgument naming those there are.
  const Tensor& Extra(std::string_view name) const;
};

// A copy of `x` on the device of `like`, or `x` itself when it is there already. The explicit way
// to move a constant; gradients do not pass. Cost: a copy through the host.
Tensor ToDeviceOf(const Tensor& x, const Tensor& like);

// What each position predicts, after shift and documents: class ids or `ignore_index`, in the shape
// of the labels, which is returned as it is where nothing has to change.
//
// Errors: kInvalidArgument if labels are missing or not i32 or i64, if a tensor of documents has
//   another shape than the labels, naming both, or for cumulative lengths that do not ascend from 0
//   to at most the number of labels.
Tensor TokenTargets(const LossLabels& labels, LabelMode mode, int64_t ignore_index);

// The elements of `targets` that are not `ignore_index`.
int64_t CountTargets(const Tensor& targets, int64_t ignore_index);

// Throws kInvalidArgument "label 7 at [1, 3] is outside [0, 5)" for the first label of a batch that
// is neither a class nor `ignore_index`. For labels as the batch has them, before any shift.
void CheckClasses(const LossLabels& labels, int64_t classes, int64_t ignore_index);

}  // namespace sherd
