#include "sherd/shard/window.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
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
  if (!AgreeOnCounts()) return false;
  if (options_.in_backward != nullptr) {
    for (const Parameter& parameter : model_.parameters()) {
      if (!HasWindowHooks(parameter)) continue;
      ThrowInvalidArgument(
          absl::StrCat("parameter '", parameter.name(),
                       "' has a hook on its window's gradient, and the optimizer in backward "
                       "gives gradients away before the window has them: use one of the two"),
          {.op = "window"});
    }
    options_.in_backward->BeginWindow();
    stepped_squares_ = std::make_shared<double>(0.0);
  }
  if (EventLog* const log = events()) {
    log->Begin({.kind = EventKind::kStep, .phase = EventPhase::kFinish, .sequence = step_});
  }
  return true;
}

bool WindowState::AgreeOnCounts() {
  if (context_ == nullptr || context_->size() == 1) return micro_batches_ > 0;
  // One slot for each rank's micro-batches, so that a disagreement can be told in full; then the
  // items.
  std::vector<int64_t> slots(static_cast<size_t>(context_->size()) + 1, 0);
  slots[static_cast<size_t>(context_->rank())] = micro_batches_;
  slots.back() = items_;
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
  if (options_.sync == WindowSync::kCaller) return;
  GradientSync sync = GradientSync::kFull;
  if (backwards_ + 1 < micro_batches_ && options_.sync != WindowSync::kFullEach) {
    sync = options_.sync == WindowSync::kLast ? GradientSync::kNone : GradientSync::kCutOnly;
  }
  for (Unit* unit : *units_) unit->SetSync(sync);
  OptimizerInBackward* const optimizer = options_.in_backward;
  if (optimizer == nullptr || backwards_ + 1 < micro_batches_) return;
  for (Unit* unit : *units_) {
    unit->WhenWhole([optimizer, squares = stepped_squares_](Unit& whole) {
      *squares += optimizer->StepUnit(whole);
    });
  }
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
    const double scale = options_.scaler != nullptr ? options_.scaler->scale() : 1.0;
    tape->Backward(loss.value, scale / static_cast<double>(std::max<int64_t>(items_, 1)), {}, site);
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

// One small all-reduce carries everything ranks must agree on before the step: losses, parts of the
// norm, reported items, and which parameters got a gradient anywhere.
WindowState::Verdict WindowState::Reduce(NormType norm) {
  const int ranks = context_ != nullptr ? context_->size() : 1;
  const int rank = context_ != nullptr ? context_->rank() : 0;
  constexpr size_t kNormBegin = 2;
  const size_t norm_end = kNormBegin + static_cast<size_t>(NormSlots(norm, ranks));
  std::vector<double> packed(norm_end, 0.0);
  packed[0] = loss_sum_;
  packed[1] = static_cast<double>(reported_items_);
  const std::span<double> parts(packed.data() + kNormBegin, norm_end - kNormBegin);
  LocalNormPart(model_, *units_, norm, rank, parts);
  if (stepped_squares_ != nullptr) parts[0] += *stepped_squares_;
  if (ranks > 1) {
    for (Unit* unit : *units_) {
      for (int i = 0; i < unit->parameters(); ++i) packed.push_back(unit->used(i) ? 1.0 : 0.0);
    }
    context_->control().AllReduce(packed.data(), static_cast<int64_t>(packed.size()), DType::kF64,
                                  {.op = "window"});
    size_t next = norm_end;
    for (Unit* unit : *units_) {
      for (int i = 0; i < unit->parameters(); ++i) {
        if (packed[next++] > 0.0) unit->MarkUsed(i);
      }
    }
  }
  const std::span<const double> agreed(packed.data() + kNormBegin, norm_end - kNormBegin);
  const double unscale = options_.scaler != nullptr ? options_.scaler->grad_scale() : 1.0;
  return {packed[0], TotalNorm(norm, agreed) * unscale, LossScaler::FoundInf(agreed),
          static_cast<int64_t>(packed[1])};
}

void WindowState::CheckFinish(const Optimizer& optimizer, const FinishOptions& options,
                              const ErrorContext& what) const {
  if (failure_.has_value()) {
    ThrowFailedPrecondition(absl::StrCat("a backward failed: ", *failure_, "; call Recover()"),
                            what);
  }
  if (finished_) ThrowFailedPrecondition("called a second time", what);
  if (backwards_ != micro_batches_) {
    ThrowFailedPrecondition(
        absl::StrCat(backwards_, " of ", micro_batches_, " micro-batches had a backward"), what);
  }
  if (options_.in_backward == nullptr) return;
  if (&optimizer != options_.in_backward) {
    ThrowInvalidArgument("the Accumulation has an optimizer in backward; give Finish that one",
                         what);
  }
  if (options.clip > 0.0 || options.norm != NormType::kTwo) {
    ThrowInvalidArgument(
        absl::StrCat(options.clip > 0.0 ? "clipping" : "a norm other than kTwo",
                     " needs all gradients before the first step, and the optimizer in backward "
                     "steps before they are there: use one of the two"),
        what);
  }
}

bool WindowState::RunHooks(double unscale) {
  const std::vector<Parameter> parameters = model_.parameters();
  if (std::none_of(parameters.begin(), parameters.end(), HasWindowHooks)) return false;
  if (unscale != 1.0) ScaleGradients(model_, unscale);
  for (const Parameter& parameter : parameters) {
    if (parameter.local_grad().defined()) RunWindowHooks(parameter);
  }
  return true;
}

StepResult WindowState::Apply(const Verdict& verdict, double unscale, Optimizer& optimizer,
                              const FinishOptions& options) {
  StepResult result;
  result.step = step_;
  result.items = items_;
  result.loss = verdict.loss_sum / static_cast<double>(std::max<int64_t>(items_, 1));
  result.grad_norm = verdict.norm;
  result.learning_rate = options_.in_backward != nullptr ? options_.in_backward->learning_rate()
                                                         : options.learning_rate;
  result.skipped = verdict.found_inf;
  if (!result.skipped) {
    const double clip = options.clip > 0.0 ? ClipCoefficient(result.grad_norm, options.clip) : 1.0;
    const EventSpan updating(events(), {.kind = EventKind::kUpdate, .phase = EventPhase::kFinish});
    optimizer.Step({.learning_rate = options.learning_rate, .grad_scale = clip * unscale});
  }
  if (options_.scaler != nullptr) options_.scaler->Update(verdict.found_inf);
  return result;
}

StepResult WindowState::Finish(Optimizer& optimizer, const FinishOptions& options, CallSite site) {
  const ErrorContext what{.op = "window.Finish", .site = site};
  CheckFinish(optimizer, options, what);
  if (context_ != nullptr) {
    for (Unit* unit : *units_) unit->FinishGradients();
    context_->WaitReductions(0);
    context_->RunWhole();
    context_->ReshardIdle();
  }
  const Verdict verdict = Reduce(options.norm);
  if (verdict.reported_items != items_) {
    ThrowFailedPrecondition(absl::StrCat("the losses reported ", verdict.reported_items,
                                         " items, the window was scaled for ", items_),
                            what);
  }
  if (verdict.found_inf && options_.in_backward != nullptr) {
    ThrowFailedPrecondition(
        "the gradient norm is not finite, and the optimizer in backward has stepped already", what);
  }
  double unscale = options_.scaler != nullptr ? options_.scaler->grad_scale() : 1.0;
  if (RunHooks(unscale)) unscale = 1.0;
  const StepResult result = Apply(verdict, unscale, optimizer, options);
  for (const Parameter& parameter : model_.parameters()) parameter.ClearGrad();
  finished_ = true;
  if (EventLog* const log = events()) {
    log->End({.kind = EventKind::kStep, .phase = EventPhase::kFinish, .sequence = step_});
  }
  return result;
}

}  // namespace internal

Accumulation::Accumulation(Module& model, AccumulationOptions options)
    : model_(model),
      options_(options),
      context_(ContextOf(model)),
      units_(std::make_shared<const std::vector<Unit*>>(UnitsOf(model))) {
  if (options.micro_batches < 1) {
    ThrowInvalidArgument(absl::StrCat("micro_batches is at least 1, got ", options.micro_batches),
                         {.op = "Accumulation"});
  }
  if (options_.in_backward != nullptr &&
      (options_.scaler != nullptr || options_.sync == WindowSync::kCaller)) {
    ThrowInvalidArgument(
        absl::StrCat("an optimizer in backward steps before ",
                     options_.scaler != nullptr
                         ? "the loss scaler has its verdict"
                         : "a caller of SetGradientSync (kCaller) says that gradients are whole",
                     ": use one of the two"),
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
