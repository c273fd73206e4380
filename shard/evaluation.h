#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/module.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/shard/context.h"

namespace sherd {

// The mean of a loss over batches of all ranks.
struct EvaluationResult {
  double loss = 0.0;    // over the items; 0 where there were none
  int64_t items = 0;    // labelled tokens, say, over all ranks
  int64_t batches = 0;  // over all ranks
};

namespace internal {

// What an evaluation does, without the type of the batches.
class EvaluationState {
 public:
  // Errors: kFailedPrecondition inside a Recording or after a failed step.
  EvaluationState(const Module& model, CallSite site);
  // Before each batch: whether any rank `has` one; ranks that have none take part in it.
  // COLLECTIVE.
  bool AgreeOnRound(bool has);
  // Computes this rank's batch of the round. Errors: those of `forward`, after which the others are
  // told.
  void Add(const std::function<LossSum()>& forward);
  // Sums over all ranks. COLLECTIVE.
  EvaluationResult Finish();

 private:
  const std::vector<Unit*> units_;
  const std::shared_ptr<ShardContext> context_;  // null for a model that is not sharded
  double loss_ = 0.0;
  int64_t items_ = 0;
  int64_t batches_ = 0;
};

}  // namespace internal

// Runs `forward`, a callable from a batch to its LossSum, over the batches of `loader`, a callable
// that returns std::optional of a batch, without recording.
//
// All ranks end together, whatever number of batches each has: one that has run out takes part in
// the gathers of the others. The mean is over items, so it depends neither on how they are spread
// over ranks nor on how batches are cut, and a rank's padding counts nothing. A batch of no items
// adds nothing, whatever its value is.
// COLLECTIVE. Cost: one small message for each round of batches, and one at the end.
// Errors: kFailedPrecondition inside a Recording, or after a failed step; what `forward` throws,
// which
//   ends the step on all ranks.
template <typename Loader, typename Forward>
EvaluationResult Evaluate(const Module& model, Loader&& loader, Forward&& forward,
                          CallSite site = CallSite::Here()) {
  using Batch = typename std::invoke_result_t<Loader&>::value_type;
  internal::EvaluationState state(model, site);
  bool ended = false;
  for (;;) {
    std::optional<Batch> batch;
    if (!ended) batch = loader();
    ended = !batch.has_value();
    if (!state.AgreeOnRound(!ended)) return state.Finish();
    if (ended) continue;
    state.Add([&] { return forward(std::as_const(*batch)); });
  }
}

}  // namespace sherd
