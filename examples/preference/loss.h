#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/core/tensor.h"

namespace preference {

// Labels with this value have no part in a sequence's probability.
inline constexpr int64_t kIgnored = -100;

// The log-probability of each row's labelled tokens, summed.
//
// Shapes: logits [B, T, V], labels [B, T] i64: the token after each, or kIgnored; result [B] f64.
// Errors: sherd::Error kInvalidArgument if the shapes do not go together, or for a label that is
//   neither kIgnored nor below V.
sherd::Variable SequenceLogProbs(const sherd::Variable& logits, const sherd::Tensor& labels);

// How much more a model prefers each chosen answer to the rejected one: [B] f64.
struct Preferences {
  sherd::Variable chosen;    // SequenceLogProbs of the chosen answers
  sherd::Variable rejected;  // of the rejected ones
};

// Direct preference optimisation: the sum over pairs of -log sigmoid(beta (policy - reference)),
// where each is chosen less rejected. Items: the pairs.
//
// Gradients pass into the policy's numbers and wherever the reference's come from.
// Source: Rafailov et al. 2023, "Direct Preference Optimization", equation 7.
sherd::LossSum DpoLoss(const Preferences& policy, const Preferences& reference, double beta);

// Of each pair: beta (policy - reference), the margin between the rewards. On the host.
std::vector<double> Margins(const Preferences& policy, const Preferences& reference, double beta);

}  // namespace preference
