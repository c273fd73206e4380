#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/log.h"
#include "sherd/runtime/kernels/reduce.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window_state.h"

namespace sherd::internal {
namespace {

// What of a term travels with the verdict.
constexpr size_t kTermNumbers = 6;

bool IsFinite(const Tensor& gradient) { return std::isfinite(kernels::SumAbs(gradient)); }

}  // namespace

void WindowState::CheckFinish(const Optimizer& optimizer, const FinishOptions& options,
                              const ErrorContext& what) const {
  if (failure_.has_value()) {
    ThrowFailedPrecondition(absl::StrCat("a backward failed: ", *failure_, "; call Recover()"),
                            what);
  }
  if (finished_) ThrowFailedPrecondition("called a second time", what);
  if (backwards_ != held_) {
    ThrowFailedPrecondition(
        absl::StrCat(backwards_, " of ", held_, " micro-batches had a backward"), what);
  }
  const OptimizerInBackward* const in_backward = shared_->options.in_backward;
  if (in_backward == nullptr) return;
  if (&optimizer != in_backward) {
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

// One small all-reduce carries everything ranks must agree on before the step: losses, parts of the
// norm, reported items, and which parameters got a gradient anywhere. Numbers of items are exact up
// to 2^53.
WindowState::Verdict WindowState::Reduce(NormType norm) {
  const int ranks = shared_->ranks();
  const size_t norm_begin = kTermNumbers * terms_.size();
  const size_t norm_end = norm_begin + static_cast<size_t>(NormSlots(norm, ranks));
  std::vector<double> packed(norm_end, 0.0);
  for (size_t t = 0; t < terms_.size(); ++t) {
    const TermSums& sums = terms_[t];
    const double numbers[kTermNumbers] = {sums.loss,
                                          static_cast<double>(sums.reported),
                                          static_cast<double>(sums.items),
                                          static_cast<double>(sums.told_items),
                                          static_cast<double>(sums.samples),
                                          sums.weight};
    std::copy(std::begin(numbers), std::end(numbers), packed.begin() + t * kTermNumbers);
  }
  const std::span<double> parts(packed.data() + norm_begin, norm_end - norm_begin);
  LocalNormPart(shared_->model, shared_->units, norm, shared_->rank(), parts);
  if (stepped_squares_ != nullptr) parts[0] += *stepped_squares_;
  if (ranks > 1) {
    for (Unit* unit : shared_->units) {
      for (int i = 0; i < unit->parameters(); ++i) packed.push_back(unit->used(i) ? 1.0 : 0.0);
    }
    shared_->context->control().AllReduce(packed.data(), static_cast<int64_t>(packed.size()),
                                          DType::kF64, {.op = "window.Finish"});
    size_t next = norm_end;
    for (Unit* unit : shared_->units) {
      for (int i = 0; i < unit->parameters(); ++i) {
        if (packed[next++] > 0.0) unit->MarkUsed(i);
      }
    }
  }
  for (size_t t = 0; t < terms_.size(); ++t) {
    const double* const numbers = packed.data() + t * kTermNumbers;
    TermSums& sums = terms_[t];
    sums.loss = numbers[0];
    sums.reported = static_cast<int64_t>(numbers[1]);
    if (!streaming_) continue;  // those of the others are agreed on already
    sums.items = static_cast<int64_t>(counted_ ? numbers[2] : numbers[1]);
    sums.told_items = static_cast<int64_t>(numbers[3]);
    sums.samples = static_cast<int64_t>(numbers[4]);
    sums.weight = numbers[5];
  }
  if (streaming_) held_everywhere_ = std::accumulate(holds_.begin(), holds_.end(), int64_t{0});
  const std::span<const double> agreed(packed.data() + norm_begin, norm_end - norm_begin);
  Verdict verdict{.finite = !LossScaler::FoundInf(agreed)};
  const LossScaler* const scaler = shared_->options.scaler;
  if (scaler != nullptr) verdict.unscale = scaler->grad_scale();
  if (streaming_ && DividedBy(0) > 0.0) verdict.unscale /= DividedBy(0);
  verdict.norm = TotalNorm(norm, agreed) * verdict.unscale;
  return verdict;
}

void WindowState::CheckReported(const ErrorContext& what) const {
  for (size_t t = 0; t < terms_.size(); ++t) {
    const LossTerm& term = shared_->options.losses[t];
    const TermSums& sums = terms_[t];
    // Counts that told no items leave nothing to compare.
    const bool told = term.divide_by == Divisor::kItems || sums.told_items > 0;
    if (!told || sums.reported == sums.items) continue;
    ThrowFailedPrecondition(absl::StrCat("the losses '", term.name, "' reported ", sums.reported,
                                         " items, the counts said ", sums.items),
                            what);
  }
}

void WindowState::RefuseNonFinite(const ErrorContext& what) {
  const std::vector<Parameter> parameters = shared_->model.parameters();
  const int64_t none = static_cast<int64_t>(parameters.size());
  int64_t first = 0;
  while (first < none) {
    const Tensor gradient = parameters[static_cast<size_t>(first)].local_grad();
    if (gradient.defined() && !IsFinite(gradient)) break;
    ++first;
  }
  const std::vector<int64_t> firsts = GatherCounts(first);
  const auto lowest = std::min_element(firsts.begin(), firsts.end());
  std::string losses;
  for (size_t t = 0; t < terms_.size(); ++t) {
    if (std::isfinite(terms_[t].loss)) continue;
    absl::StrAppend(&losses, losses.empty() ? "" : ", ", "the loss '",
                    shared_->options.losses[t].name, "' is ", terms_[t].loss);
  }
  std::string gradient;
  if (*lowest < none) {
    gradient =
        absl::StrCat("the gradient of parameter '", parameters[static_cast<size_t>(*lowest)].name(),
                     "' is not finite on rank ", lowest - firsts.begin());
  }
  Close();
  ThrowFailedPrecondition(
      absl::StrCat(
          losses, !losses.empty() && !gradient.empty() ? "; " : "", gradient,
          losses.empty() && gradient.empty() ? "the norm of the gradients is not finite" : "",
          "; nothing was changed and the gradients were dropped (NonFinite::kError)"),
      what);
}

StepSkip WindowState::Judge(const Verdict& verdict, const FinishOptions& options,
                            const ErrorContext& what) {
  bool nothing = held_everywhere_ == 0;
  bool finite = verdict.finite;
  bool divided = false;
  for (size_t t = 0; t < terms_.size(); ++t) {
    divided |= DivisorOf(t) > 0.0;
    finite &= std::isfinite(terms_[t].loss);
  }
  nothing |= !divided;
  if (nothing && shared_->options.empty == EmptyWindow::kSkip) return StepSkip::kEmpty;
  if (finite) return StepSkip::kNone;
  if (shared_->options.in_backward != nullptr) {
    ThrowFailedPrecondition(
        "the loss or the gradient norm is not finite, and the optimizer in backward has stepped "
        "already",
        what);
  }
  if (shared_->options.scaler != nullptr) return StepSkip::kNonFinite;
  if (options.non_finite == NonFinite::kError) RefuseNonFinite(what);
  return options.non_finite == NonFinite::kSkip ? StepSkip::kNonFinite : StepSkip::kNone;
}

bool WindowState::RunHooks(double unscale) {
  const std::vector<Parameter> parameters = shared_->model.parameters();
  if (std::none_of(parameters.begin(), parameters.end(), HasWindowHooks)) return false;
  if (unscale != 1.0) ScaleGradients(shared_->model, unscale);
  for (const Parameter& parameter : parameters) {
    if (parameter.local_grad().defined()) RunWindowHooks(parameter);
  }
  return true;
}

StepResult WindowState::Describe(const Verdict& verdict) const {
  StepResult result;
  result.step = step();
  result.items = terms_[0].items;
  result.samples = terms_[0].samples;
  result.micro_batches = held_everywhere_;
  result.grad_norm = verdict.norm;
  for (size_t t = 0; t < terms_.size(); ++t) {
    const double divisor = DividedBy(t);
    result.losses.push_back(divisor > 0.0 ? terms_[t].loss / divisor : 0.0);
    result.loss += shared_->options.losses[t].weight * result.losses.back();
  }
  return result;
}

void WindowState::LogEffectiveBatch(const StepResult& result) {
  if (shared_->described || result.skipped || shared_->context == nullptr) return;
  shared_->described = true;
  const LogSink& log = shared_->context->log();
  if (shared_->rank() != 0 || !log) return;
  std::string text = absl::StrCat("effective batch: step ", result.step, " has ");
  if (result.samples > 0) absl::StrAppend(&text, result.samples, " samples in ");
  absl::StrAppend(&text, result.micro_batches, " micro-batches on ", shared_->ranks(), " ranks");
  for (size_t t = 0; t < terms_.size(); ++t) {
    absl::StrAppend(&text, "; '", shared_->options.losses[t].name, "' is divided by ",
                    DividedBy(t));
  }
  log({LogLevel::kInfo, 0, text});
}

void WindowState::Close() {
  // A unit that the last micro-batch did not call still waits: not for the next window's gradients.
  if (shared_->options.in_backward != nullptr) {
    for (Unit* unit : shared_->units) unit->WhenWhole(nullptr);
  }
  if (shared_->context != nullptr) shared_->context->ReshardIdle();
  for (const Parameter& parameter : shared_->model.parameters()) parameter.ClearGrad();
  finished_ = true;
  if (EventLog* const log = events()) {
    log->End({.kind = EventKind::kStep, .phase = EventPhase::kFinish, .sequence = step()});
  }
}

StepResult WindowState::Finish(Optimizer& optimizer, const Schedule& schedule,
                               const FinishOptions& options, CallSite site) {
  const ErrorContext what{.op = "window.Finish", .site = site};
  CheckFinish(optimizer, options, what);
  FollowRest();
  if (ShardContext* const context = shared_->context.get()) {
    for (Unit* unit : shared_->units) unit->FinishGradients();
    context->WaitReductions(0);
    context->RunWhole();
    context->ReshardIdle();
  }
  Verdict verdict = Reduce(options.norm);
  CheckReported(what);
  const StepSkip skip = Judge(verdict, options, what);
  if (RunHooks(verdict.unscale)) verdict.unscale = 1.0;
  StepResult result = Describe(verdict);
  result.learning_rate = shared_->options.in_backward != nullptr
                             ? shared_->options.in_backward->learning_rate()
                             : schedule.At(shared_->steps);
  result.why = skip;
  result.skipped = skip != StepSkip::kNone;
  LogEffectiveBatch(result);
  if (!result.skipped) {
    const double clip = options.clip > 0.0 ? ClipCoefficient(result.grad_norm, options.clip) : 1.0;
    const EventSpan updating(events(), {.kind = EventKind::kUpdate, .phase = EventPhase::kFinish});
    optimizer.Step({.learning_rate = result.learning_rate, .grad_scale = clip * verdict.unscale});
  }
  if (shared_->options.scaler != nullptr && skip != StepSkip::kEmpty) {
    shared_->options.scaler->Update(skip == StepSkip::kNonFinite);
  }
  Close();
  if (!result.skipped) ++shared_->steps;
  return result;
}

void WindowState::Discard(CallSite site) {
  const ErrorContext what{.op = "window.Discard", .site = site};
  if (finished_) ThrowFailedPrecondition("the window was finished already", what);
  ShardContext* const context = shared_->context.get();
  if (context != nullptr && context->announcer().leading()) {
    context->Fail("a window was discarded in a micro-batch that other ranks follow");
    context->CheckUsable();
  }
  if (shared_->options.in_backward != nullptr && rounds_ > 0 && backwards_ == rounds_) {
    ThrowFailedPrecondition("the optimizer in backward has stepped already", what);
  }
  if (context != nullptr) {
    double agreed = static_cast<double>(backwards_);
    if (several_ranks()) context->control().AllReduce(&agreed, 1, DType::kF64, what);
    context->WaitReductions(0);
    for (Unit* unit : shared_->units) unit->DropGradients();
  }
  if (Tape* const tape = CurrentTape()) tape->Reset();
  Close();
}

}  // namespace sherd::internal
