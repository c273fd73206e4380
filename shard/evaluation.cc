#include "sherd/shard/evaluation.h"

#include <algorithm>
#include <exception>

#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/fully_shard.h"

namespace sherd::internal {

EvaluationState::EvaluationState(const Module& model, CallSite site)
    : units_(UnitsOf(model)), context_(ContextOf(model)) {
  if (context_ != nullptr) context_->CheckUsable();
  if (!IsRecording()) return;
  ThrowFailedPrecondition("a Recording is on for this thread, which an evaluation does not need",
                          {.op = "Evaluate", .site = site});
}

bool EvaluationState::AgreeOnRound(bool has) {
  if (context_ == nullptr || context_->size() == 1) return has;
  const std::vector<bool> who = context_->AgreeOnHolders(has, "Evaluate");
  if (std::find(who.begin(), who.end(), true) == who.end()) return false;
  if (std::find(who.begin(), who.end(), false) != who.end()) {
    context_->announcer().CheckUnits(units_);
  }
  context_->announcer().Begin(who);
  if (!has) context_->announcer().Follow();
  return true;
}

void EvaluationState::Add(const std::function<LossSum()>& forward) {
  LossSum loss;
  try {
    loss = forward();
  } catch (const std::exception& error) {
    if (context_ != nullptr) context_->Fail(error.what());
    throw;
  }
  if (context_ != nullptr) context_->announcer().End();
  ++batches_;
  if (loss.items == 0) return;
  loss_ += loss.value.value().Item<double>();
  items_ += loss.items;
}

EvaluationResult EvaluationState::Finish() {
  int64_t counts[] = {items_, batches_};
  if (context_ != nullptr && context_->size() > 1) {
    context_->control().AllReduce(&loss_, 1, DType::kF64, {.op = "Evaluate"});
    context_->control().AllReduce(counts, 2, DType::kI64, {.op = "Evaluate"});
  }
  return {.loss = counts[0] > 0 ? loss_ / static_cast<double>(counts[0]) : 0.0,
          .items = counts[0],
          .batches = counts[1]};
}

}  // namespace sherd::internal
