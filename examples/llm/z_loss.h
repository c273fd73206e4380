#pragma once

#include <cstdint>
#include <string_view>

#include "sherd/autograd/loss/loss.h"

namespace llm {

// Keeps the logarithm of the softmax's denominator near zero: the sum of its squares over the
// labelled tokens. A loss of one's own beside the language model's, with a denominator of its own.
//
// Source: Chowdhery et al. 2022, "PaLM", section 5.
class ZLoss final : public sherd::Loss {
 public:
  explicit ZLoss(int64_t ignored) : ignored_(ignored) {}
  std::string_view name() const override { return "z_loss"; }
  int64_t Count(const sherd::LossLabels& labels) const override;

 protected:
  // Shapes: logits [B, T, V], labels [B, T] i64: the token after each.
  sherd::LossSum Compute(const sherd::Variable& logits, const sherd::LossLabels& labels,
                         sherd::CallSite site) const override;

 private:
  int64_t ignored_;
};

}  // namespace llm
