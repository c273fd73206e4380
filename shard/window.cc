#include "sherd/shard/window.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/reduce.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {
namespace internal {

void WindowState::CheckClean() const {
  if (context_ != nullptr) context_->CheckUsable();
  for (const Parameter& parameter : model_.parameters()) {
    if (!parameter.local_grad().defined()) continue;
    ThrowFailedPrecondition(
        absl::StrCat("parameter '", parameter.name(),
                     "' still holds a gradient: the window before was not finished; "
                     "call Recover() to drop it"),
        {.op = "window"});
  }
}

bool WindowState::Agree(int64_t micro_batches, int64_t items) {
  CheckClean();
  micro_batches_ = micro_batches;
  items_ = items;
  if (context_ == nullptr || context_->size() == 1) return micro_batches > 0;
  // One slot for each rank's micro-batches, so that a disagreement can be told in full; then the
  // items.
  std::vector<int64_t> slots(static_cast<size_t>(context_->size()) + 1, 0);
  slots[static_cast<size_t>(context_->rank())] = micro_batches;
  slots.back() = items;
  context_->control().AllReduce(slots.data(), static_cast<int64_t>(slots.size()), DType::kI64,
                                {.op = "window"});
  items_ = slots.back();
  slots.pop_back();
  if (std::all_of(slots.begin(), slots.end(), [&](int64_t n) { return n == slots[0]; })) {
    return slots[0] > 0;
  }
  ThrowInvalidArgument(absl::StrCat("ranks hold different numbers of micro-batches: ",
                                    absl::StrJoin(slots, ", "), " (rank 0 first)"),
                       {.op = "window"});
}

void WindowState::SetSync() const {
  if (sync_ == WindowSync::kCaller) return;
  GradientSync sync = GradientSync::kFull;
  if (backwards_ + 1 < micro_batches_ && sync_ != WindowSync::kFullEach) {
    sync = sync_ == WindowSync::kLast ? GradientSync::kNone : GradientSync::kCutOnly;
  }
  SetGradientSync(model_, sync);
}

void WindowState::Backward(const LossSum& loss, CallSite site) {
  const ErrorContext what{.op = "window.Backward", .site = site};
  Tape* tape = CurrentTape();
  if (tape == nullptr) ThrowFailedPrecondition("no Recording is on for this thread", what);
  if (failure_.has_value()) {
    ThrowFailedPrecondition(
        absl::StrCat("an earlier backward failed: ", *failure_, "; call Recover()"), what);
  }
  if (backwards_ == micro_batches_) {
    ThrowFailedPrecondition(
        absl::StrCat("called more often than the window has micro-batches (", micro_batches_, ")"),
        what);
  }
  SetSync();
  try {
    tape->Backward(loss.value, 1.0 / static_cast<double>(std::max<int64_t>(items_, 1)), {}, site);
  } catch (const std::exception& error) {
    failure_ = error.what();
    if (context_ != nullptr) context_->Fail(*failure_);
    tape->Reset();
    throw;
  }
  loss_sum_ += *loss.value.value().data<double>();
  reported_items_ += loss.items;
  ++backwards_;
  tape->Reset();
}

double WindowState::LocalNormSquared() const {
  double sum = 0.0;
  for (Unit* unit : UnitsOf(model_)) {
    if (!unit->counts_in_norm()) continue;
    for (int i = 0; i < unit->parameters(); ++i) {
      const Tensor gradient = unit->HeldGradient(i);
      if (gradient.defined()) sum += kernels::SumSquares(gradient);
    }
  }
  for (const Parameter& parameter : model_.parameters()) {
    if (parameter.state().host != nullptr) continue;
    const Tensor gradient = parameter.local_grad();
    if (gradient.defined()) sum += kernels::SumSquares(gradient);
  }
  return sum;
}

// One small all-reduce carries everything ranks must agree on before the step: losses, parts of the
// norm, reported items, and which parameters got a gradient anywhere.
WindowState::Verdict WindowState::Reduce() {
  Verdict verdict{loss_sum_, LocalNormSquared(), reported_items_};
  if (context_ == nullptr || context_->size() == 1) return verdict;
  const std::vector<Unit*> units = UnitsOf(model_);
  std::vector<double> packed = {verdict.loss_sum, verdict.norm_squared,
                                static_cast<double>(verdict.reported_items)};
  for (Unit* unit : units) {
    for (int i = 0; i < unit->parameters(); ++i) packed.push_back(unit->used(i) ? 1.0 : 0.0);
  }
  context_->control().AllReduce(packed.data(), static_cast<int64_t>(packed.size()), DType::kF64,
                                {.op = "window"});
  size_t next = 3;
  for (Unit* unit : units) {
    for (int i = 0; i < unit->parameters(); ++i) {
      if (packed[next++] > 0.0) unit->MarkUsed(i);
    }
  }
  return {packed[0], packed[1], static_cast<int64_t>(packed[2])};
}

StepResult WindowState::Finish(Optimizer& optimizer, const FinishOptions& options, CallSite site) {
  const ErrorContext what{.op = "window.Finish", .site = site};
  if (failure_.has_value()) {
    ThrowFailedPrecondition(absl::StrCat("a backward failed: ", *failure_, "; call Recover()"),
                            what);
  }
  if (finished_) ThrowFailedPrecondition("called a second time", what);
  if (backwards_ != micro_batches_) {
    ThrowFailedPrecondition(
        absl::StrCat(backwards_, " of ", micro_batches_, " micro-batches had a backward"), what);
  }
  if (context_ != nullptr) {
    FinishGradients(model_);
    context_->WaitReductions(0);
    context_->ReshardIdle();
  }
  const Verdict verdict = Reduce();
  if (verdict.reported_items != items_) {
    ThrowFailedPrecondition(absl::StrCat("the losses reported ", verdict.reported_items,
                                         " items, the window was scaled for ", items_),
                            what);
  }
  StepResult result;
  result.step = step_;
  result.items = items_;
  result.loss = verdict.loss_sum / static_cast<double>(std::max<int64_t>(items_, 1));
  result.grad_norm = std::sqrt(verdict.norm_squared);
  result.learning_rate = options.learning_rate;
  result.skipped = !std::isfinite(result.grad_norm);
  if (!result.skipped) {
    // The small number keeps a norm of zero from dividing; the field's libraries agree on its size.
    const double coefficient =
        options.clip > 0.0 ? std::min(1.0, options.clip / (result.grad_norm + 1e-6)) : 1.0;
    optimizer.Step({.learning_rate = options.learning_rate, .grad_scale = coefficient});
  }
  for (const Parameter& parameter : model_.parameters()) parameter.ClearGrad();
  finished_ = true;
  return result;
}

}  // namespace internal

Accumulation::Accumulation(Module& model, AccumulationOptions options)
    : model_(model), options_(options), context_(ContextOf(model)) {
  if (options.micro_batches < 1) {
    ThrowInvalidArgument(absl::StrCat("micro_batches is at least 1, got ", options.micro_batches),
                         {.op = "Accumulation"});
  }
  if (context_ == nullptr || context_->size() == 1) return;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.state().host != nullptr || !parameter.requires_grad()) continue;
    if (IsIgnored(model, parameter)) continue;
    ThrowInvalidArgument(
        absl::StrCat("parameter '", parameter.name(),
                     "' is in no unit, so its gradient would not be summed over the ranks: "
                     "apply FullyShard to the model itself too"),
        {.op = "Accumulation"});
  }
}

}  // namespace sherd
