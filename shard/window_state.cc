#include "sherd/shard/window_state.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/fully_shard.h"

namespace sherd::internal {

WindowState::WindowState(std::shared_ptr<AccumulationState> shared, bool streaming)
    : shared_(std::move(shared)), streaming_(streaming), terms_(shared_->options.losses.size()) {}

WindowState::~WindowState() {
  ShardContext* const context = shared_->context.get();
  if (context == nullptr || !context->announcer().leading() || finished_) return;
  context->Fail("a window was left in a micro-batch that other ranks follow");
}

void WindowState::CheckClean() const {
  if (shared_->context != nullptr) shared_->context->CheckUsable();
  for (const Parameter& parameter : shared_->model.parameters()) {
    if (!parameter.local_grad().defined()) continue;
    ThrowFailedPrecondition(
        absl::StrCat("parameter '", parameter.name(),
                     "' still holds a gradient: the window before was not finished; "
                     "call Recover() to drop it"),
        {.op = "window"});
  }
}

bool WindowState::Add(std::span<const BatchCount> counts) {
  ++given_;
  counted_ |= !counts.empty();
  bool something = counts.empty();
  size_t k = 0;
  for (size_t t = 0; t < terms_.size(); ++t) {
    const LossTerm& term = shared_->options.losses[t];
    something |= term.collective;
    if (term.divide_by == Divisor::kGiven || term.divide_by == Divisor::kMicroBatches) {
      something = true;
      continue;
    }
    if (counts.empty()) continue;
    const BatchCount& count = counts[k++];
    const bool told = term.divide_by == Divisor::kItems     ? count.items >= 0
                      : term.divide_by == Divisor::kSamples ? count.samples >= 0
                                                            : count.weight >= 0.0;
    if (!told || count.items < -1 || count.samples < -1) {
      ThrowInvalidArgument(
          absl::StrCat("the count of '", term.name, "' says items ", count.items, ", samples ",
                       count.samples, ", weight ", count.weight, ", and not what it is divided by"),
          {.op = "window"});
    }
    TermSums& sums = terms_[t];
    sums.items += std::max<int64_t>(count.items, 0);
    sums.told_items += count.items >= 0 ? 1 : 0;
    sums.samples += std::max<int64_t>(count.samples, 0);
    sums.weight += std::max(count.weight, 0.0);
    something |= !count.nothing();
  }
  // A streaming window that counts empty steps cannot know yet that this one will be.
  something |= streaming_ && shared_->options.empty == EmptyWindow::kCount;
  if (something) ++held_;
  return something;
}

bool WindowState::Agree() {
  CheckClean();
  AgreeOnCounts();
  if (given_everywhere_ == 0) return false;
  if (rounds_ > 0 && !AllHave(rounds_ - 1)) CheckFollowed();
  Open();
  return true;
}

void WindowState::CheckFollowed() const {
  for (const LossTerm& term : terms()) {
    if (!term.collective) continue;
    ThrowInvalidArgument(
        absl::StrCat("loss '", term.name, "' talks to the other ranks, and they hold ",
                     absl::StrJoin(holds_, ", "),
                     " micro-batches: give all ranks the same number, with no rows where there are "
                     "none"),
        {.op = "window"});
  }
  shared_->context->announcer().CheckUnits(shared_->units);
}

void WindowState::Open() {
  OptimizerInBackward* const in_backward = shared_->options.in_backward;
  if (in_backward != nullptr) {
    for (const Parameter& parameter : shared_->model.parameters()) {
      if (!HasWindowHooks(parameter)) continue;
      ThrowInvalidArgument(
          absl::StrCat("parameter '", parameter.name(),
                       "' has a hook on its window's gradient, and the optimizer in backward "
                       "gives gradients away before the window has them: use one of the two"),
          {.op = "window"});
    }
    in_backward->BeginWindow();
    stepped_squares_ = std::make_shared<double>(0.0);
  }
  if (EventLog* const log = events()) {
    log->Begin({.kind = EventKind::kStep, .phase = EventPhase::kFinish, .sequence = step()});
  }
}

// One message carries what each rank holds and the sums of the counts, exact in 64 bits; weights,
// which are no integers, take another.
void WindowState::AgreeOnCounts() {
  const auto ranks = static_cast<size_t>(shared_->ranks());
  const auto rank = static_cast<size_t>(shared_->rank());
  std::vector<int64_t> packed(2 * ranks, 0);
  packed[rank] = held_;
  packed[ranks + rank] = given_;
  std::vector<double> weights;
  for (size_t t = 0; t < terms_.size(); ++t) {
    packed.insert(packed.end(), {terms_[t].items, terms_[t].told_items, terms_[t].samples});
    if (shared_->options.losses[t].divide_by == Divisor::kWeights) {
      weights.push_back(terms_[t].weight);
    }
  }
  if (several_ranks()) {
    ProcessGroup& control = shared_->context->control();
    control.AllReduce(packed.data(), static_cast<int64_t>(packed.size()), DType::kI64,
                      {.op = "window"});
    if (!weights.empty()) {
      control.AllReduce(weights.data(), static_cast<int64_t>(weights.size()), DType::kF64,
                        {.op = "window"});
    }
  }
  const auto given = packed.begin() + static_cast<std::ptrdiff_t>(ranks);
  const auto sums = given + static_cast<std::ptrdiff_t>(ranks);
  holds_.assign(packed.begin(), given);
  given_everywhere_ = std::accumulate(given, sums, int64_t{0});
  size_t w = 0;
  auto next = sums;
  for (size_t t = 0; t < terms_.size(); ++t) {
    terms_[t].items = *next++;
    terms_[t].told_items = *next++;
    terms_[t].samples = *next++;
    if (shared_->options.losses[t].divide_by == Divisor::kWeights) terms_[t].weight = weights[w++];
  }
  hands_out_all_ = shared_->options.empty == EmptyWindow::kCount &&
                   std::all_of(holds_.begin(), holds_.end(), [](int64_t n) { return n == 0; });
  if (hands_out_all_) {
    holds_.assign(given, sums);
    held_ = given_;
  }
  held_everywhere_ = std::accumulate(holds_.begin(), holds_.end(), int64_t{0});
  rounds_ = *std::max_element(holds_.begin(), holds_.end());
}

double WindowState::DivisorOf(size_t term) const {
  const LossTerm& options = shared_->options.losses[term];
  const TermSums& sums = terms_[term];
  switch (options.divide_by) {
    case Divisor::kItems:
      return static_cast<double>(sums.items);
    case Divisor::kSamples:
      return static_cast<double>(sums.samples);
    case Divisor::kMicroBatches:
      return static_cast<double>(held_everywhere_);
    case Divisor::kWeights:
      return sums.weight;
    default:
      return options.divisor;
  }
}

std::vector<int64_t> WindowState::GatherCounts(int64_t mine) const {
  if (!several_ranks()) return {mine};
  return shared_->context->AgreeOn(mine, "window");
}

bool WindowState::AgreeOnFirst(bool has) {
  CheckClean();
  // Twice the batches given, and one if there is something to learn in the last.
  first_round_ = GatherCounts(2 * given_ + (has ? 1 : 0));
  const bool any =
      std::any_of(first_round_.begin(), first_round_.end(), [](int64_t n) { return n > 0; });
  if (any) Open();
  return any;
}

bool WindowState::AgreeOnRound(bool has) {
  const std::vector<int64_t> who =
      first_round_.empty() ? GatherCounts(has ? 1 : 0) : std::exchange(first_round_, {});
  std::vector<bool> has_it;
  for (int64_t n : who) has_it.push_back(n % 2 != 0);
  if (std::find(has_it.begin(), has_it.end(), true) == has_it.end()) return false;
  holds_.resize(has_it.size(), 0);
  for (size_t r = 0; r < has_it.size(); ++r) holds_[r] += has_it[r] ? 1 : 0;
  if (std::find(has_it.begin(), has_it.end(), false) != has_it.end()) CheckFollowed();
  Begin(rounds_++, has_it);
  if (!has && several_ranks()) shared_->context->announcer().Follow();
  return true;
}

void WindowState::BeginIteration() {
  if (!std::exchange(iterated_, true)) return;
  ThrowFailedPrecondition(
      "a window is iterated over once, since other ranks may follow; batches() shows them again",
      {.op = "window"});
}

std::vector<bool> WindowState::WhoHas(int64_t index) const {
  std::vector<bool> has;
  for (int64_t n : holds_) has.push_back(index < n);
  return has;
}

bool WindowState::AllHave(int64_t index) const {
  return std::all_of(holds_.begin(), holds_.end(), [&](int64_t n) { return index < n; });
}

void WindowState::BeginMicroBatch(int64_t index) { Begin(index, WhoHas(index)); }

void WindowState::Begin(int64_t index, const std::vector<bool>& has) {
  entered_ = index + 1;
  SetSync(index);
  if (several_ranks()) shared_->context->announcer().Begin(has);
}

void WindowState::FollowRest() {
  if (streaming_ || !several_ranks()) return;
  for (int64_t index = held_; index < rounds_; ++index) {
    BeginMicroBatch(index);
    shared_->context->announcer().Follow();
  }
}

void WindowState::SetSync(int64_t index) const {
  const AccumulationOptions& options = shared_->options;
  if (options.sync == WindowSync::kCaller) return;
  const bool last = index + 1 == (streaming_ ? options.micro_batches : rounds_);
  GradientSync sync = GradientSync::kFull;
  if (!last && options.sync != WindowSync::kFullEach) {
    sync = options.sync == WindowSync::kLast ? GradientSync::kNone : GradientSync::kCutOnly;
  }
  for (Unit* unit : shared_->units) unit->SetSync(sync);
  OptimizerInBackward* const optimizer = options.in_backward;
  if (optimizer == nullptr || !last) return;
  for (Unit* unit : shared_->units) {
    unit->WhenWhole([optimizer, squares = stepped_squares_](Unit& whole) {
      *squares += optimizer->StepUnit(whole);
    });
  }
}

void WindowState::CheckBackward(std::span<const LossSum> losses, const ErrorContext& what) const {
  if (failure_.has_value()) {
    ThrowFailedPrecondition(
        absl::StrCat("an earlier backward failed: ", *failure_, "; call Recover()"), what);
  }
  if (CurrentTape() == nullptr) {
    ThrowFailedPrecondition("no Recording is on for this thread", what);
  }
  if (finished_) ThrowFailedPrecondition("called after the window was finished", what);
  if (backwards_ == held_) {
    ThrowFailedPrecondition(
        absl::StrCat("called more often than the window has micro-batches (", held_, ")"), what);
  }
  if (entered_ <= backwards_ && (streaming_ || !AllHave(backwards_))) {
    ThrowFailedPrecondition(
        "other ranks follow this micro-batch: take it from the window, in a loop over it", what);
  }
  if (losses.size() == terms_.size()) return;
  ThrowInvalidArgument(
      absl::StrCat("got ", losses.size(), " losses, and the Accumulation has ", terms_.size()),
      what);
}

void WindowState::RefuseScalar(const Variable& loss, CallSite site) const {
  ThrowInvalidArgument(
      absl::StrCat("a bare ", loss.defined() ? loss.value().ToString() : "undefined variable",
                   " does not say how many items it sums over, and the Accumulation is what "
                   "divides: give Backward the LossSum of a loss, or {sum, items}"),
      {.op = "window.Backward", .site = site});
}

// It adds nothing, whatever its value is: 0 times NaN is NaN.
bool WindowState::IsEmpty(size_t term, const LossSum& loss) const {
  const Divisor by = shared_->options.losses[term].divide_by;
  return loss.items == 0 && (by == Divisor::kItems || by == Divisor::kSamples);
}

void WindowState::Seed(std::span<const LossSum> losses, std::vector<Variable>& roots,
                       std::vector<Tensor>& seeds) const {
  const LossScaler* const scaler = shared_->options.scaler;
  const double scale = scaler != nullptr ? scaler->scale() : 1.0;
  for (const bool with_empty : {false, true}) {
    for (size_t t = 0; t < losses.size(); ++t) {
      const bool skips = IsEmpty(t, losses[t]) && !terms()[t].collective && !with_empty;
      if (!losses[t].value.defined() || skips) continue;
      const double divisor = streaming_ ? 1.0 : DividedBy(t);
      const double weight = shared_->options.losses[t].weight;
      const Tensor& value = losses[t].value.value();
      seeds.push_back(Tensor::Empty(value.device(), value.dtype(), value.shape()));
      kernels::Fill(seeds.back(), scale * weight / (divisor > 0.0 ? divisor : 1.0));
      roots.push_back(losses[t].value);
    }
    if (!roots.empty()) return;
  }
}

void WindowState::Backward(std::span<const LossSum> losses, CallSite site) {
  const ErrorContext what{.op = "window.Backward", .site = site};
  CheckBackward(losses, what);
  Tape* const tape = CurrentTape();
  try {
    if (entered_ <= backwards_) BeginMicroBatch(backwards_);
    std::vector<Variable> roots;
    std::vector<Tensor> seeds;
    Seed(losses, roots, seeds);
    if (roots.empty()) ThrowInvalidArgument("no loss of the micro-batch has a value", what);
    const WindowScale::Backward inside(*shared_->scale);
    tape->Backward(roots, seeds, {}, site);
    if (several_ranks()) shared_->context->announcer().End();
  } catch (const std::exception& error) {
    failure_ = error.what();
    if (shared_->context != nullptr) shared_->context->Fail(*failure_);
    tape->Reset();
    throw;
  }
  for (size_t t = 0; t < losses.size(); ++t) {
    if (!losses[t].value.defined()) continue;
    if (!IsEmpty(t, losses[t])) terms_[t].loss += losses[t].value.value().Item<double>();
    terms_[t].reported += losses[t].items;
  }
  ++backwards_;
  tape->Reset();
}

}  // namespace sherd::internal
