#pragma once

#include <cstdint>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

struct CausalLmLossOptions {
  // Labels with this value have no loss and do not count.
  int64_t ignore_index = -100;
};

// The cross-entropy of next-token prediction, summed over labelled tokens.
//
// Labels are already shifted: labels[b, t] is the token that follows position t.
class CausalLmLoss {
 public:
  explicit CausalLmLoss(CausalLmLossOptions options = {}) : options_(options) {}

  // How many items `labels` has; needs no forward, so a window can agree on the total beforehand.
  int64_t Count(const Tensor& labels) const;

  // Shapes: logits [B, T, V] (or any [..., V]), labels one i32 or i64 for each row, on the same
  // device. Cost: keeps the logits and one number per row; softmax exists only inside the backward.
  // Errors: kInvalidArgument naming both operands if shapes or devices differ, or a label is out of
  //   range.
  LossSum operator()(const Variable& logits, const Tensor& labels,
                     CallSite site = CallSite::Here()) const;

 private:
  CausalLmLossOptions options_;
};

}  // namespace sherd
