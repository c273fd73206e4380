#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/shard/window_options.h"
#include "sherd/shard/window_state.h"

namespace sherd {

// What both kinds of windows do with losses; see Window.
class WindowBase {
 public:
  // The number of the optimizer step this window makes, from 1.
  int64_t step() const { return state_->step(); }

  // Backward over the tape of the current Recording of the losses of one micro-batch, each divided
  // by its own denominator, then resets that tape. One loss for each of the Accumulation's, in its
  // order; one without a value is not in this micro-batch. A loss of no items adds nothing,
  // whatever its value. COLLECTIVE. Errors: kFailedPrecondition without a Recording;
  // kInvalidArgument for another number
  //   of losses than terms; those of Tape::Backward. After them the tape is reset too and this
  //   window refuses everything: call Recover and take the next one.
  void Backward(const LossSum& loss, CallSite site = CallSite::Here()) {
    state_->Backward(std::span(&loss, 1), site);
  }
  void Backward(std::initializer_list<LossSum> losses, CallSite site = CallSite::Here()) {
    state_->Backward(std::span(losses.begin(), losses.size()), site);
  }
  void Backward(std::span<const LossSum> losses, CallSite site = CallSite::Here()) {
    state_->Backward(losses, site);
  }
  // A bare scalar says nothing of the items it stands for: always kInvalidArgument.
  void Backward(const Variable& loss, CallSite site = CallSite::Here()) {
    state_->RefuseScalar(loss, site);
  }

  // Unscale, norm, one verdict, clip, step with the rate of schedule.At(steps made), zero, in this
  // order and together on all ranks; first makes the calls of micro-batches that only other ranks
  // have. An optimizer in backward has a rate of its own.
  // COLLECTIVE. Errors: kFailedPrecondition, with nothing changed, if a micro-batch had no
  // backward,
  //   the losses reported other item counts than were agreed on (with both numbers), a loss or a
  //   gradient is not finite (see NonFinite), after a failed Backward, or the second time.
  StepResult Finish(Optimizer& optimizer, const Schedule& schedule,
                    const FinishOptions& options = {}, CallSite site = CallSite::Here()) {
    return state_->Finish(optimizer, schedule, options, site);
  }

  // Leaves the window without a step: gradients are dropped, no counter moves.
  // COLLECTIVE: on all ranks after the same micro-batch. Errors: kFailedPrecondition on all ranks
  // if
  //   some call Finish; and in a micro-batch that only some ranks have.
  void Discard(CallSite site = CallSite::Here()) { state_->Discard(site); }

 protected:
  explicit WindowBase(std::unique_ptr<internal::WindowState> state) : state_(std::move(state)) {}
  internal::WindowState& state() { return *state_; }
  const internal::WindowState& state() const { return *state_; }

 private:
  std::unique_ptr<internal::WindowState> state_;
};

// The micro-batches of one optimizer step on this rank, and the only place where anything is
// divided.
//
// Iterate over it once, call Backward once for each micro-batch, then Finish. A batch that has
// nothing to learn (no labelled token, weight 0) is not handed out: 0 times NaN is NaN. Ranks may
// hold different numbers of micro-batches, or none; those that have fewer take part in the gathers
// and reductions of the others' in Finish.
template <typename Batch>
class Window : public WindowBase {
 public:
  Window(std::unique_ptr<internal::WindowState> state, std::vector<Batch> batches)
      : WindowBase(std::move(state)), batches_(std::move(batches)) {}

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    Iterator(Window* window, size_t index) : window_(window), index_(index) {}
    const Batch& operator*() const { return window_->batches_[index_]; }
    const Batch* operator->() const { return &**this; }
    Iterator& operator++() {
      window_->Enter(++index_);
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    Window* window_;
    size_t index_;
  };
  // The micro-batches of this rank, in the loader's order. Errors: kFailedPrecondition the second
  // time: ranks without a micro-batch follow those that take one.
  Iterator begin() {
    state().BeginIteration();
    Enter(0);
    return {this, 0};
  }
  Iterator end() { return {this, batches_.size()}; }
  // The same to look at, as often as wanted.
  std::span<const Batch> batches() const { return batches_; }

  // The items of a loss on all ranks together, and the micro-batches that they hold.
  int64_t items(size_t term = 0) const { return state().items(term); }
  int64_t micro_batches() const { return state().micro_batches(); }

 private:
  void Enter(size_t index) {
    if (index < batches_.size()) state().BeginMicroBatch(static_cast<int64_t>(index));
  }

  std::vector<Batch> batches_;
};

// The same without looking ahead: each micro-batch is taken from the loader when its turn comes,
// and the sums are divided in Finish.
//
// Gradients are sums until Finish, so those of f16 want a loss scaler that knows. Needs nothing but
// one batch at a time; ranks agree before each who has one, which is one small message more.
template <typename Batch>
class StreamWindow : public WindowBase {
 public:
  // Takes a batch and what its losses count, if they do.
  using Pull = std::function<std::optional<std::pair<Batch, std::vector<BatchCount>>>()>;
  StreamWindow(std::unique_ptr<internal::WindowState> state, Pull pull)
      : WindowBase(std::move(state)), pull_(std::move(pull)) {
    Take();
  }
  // Whether any rank was given a batch. COLLECTIVE, once.
  bool Any() { return state().AgreeOnFirst(current_.has_value()); }

  struct Sentinel {};
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(StreamWindow* window) : window_(window) {}
    const Batch& operator*() const { return *window_->current_; }
    const Batch* operator->() const { return &**this; }
    Iterator& operator++() {
      window_->Take();
      window_->Settle();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(Sentinel) const { return !window_->current_.has_value(); }

   private:
    StreamWindow* window_;
  };
  // As Window's. COLLECTIVE, and so is each step: it takes part in micro-batches that only other
  // ranks have.
  Iterator begin() {
    state().BeginIteration();
    Settle();
    return Iterator(this);
  }
  Sentinel end() { return {}; }

 private:
  // The next batch in which there is something to learn.
  void Take() {
    current_.reset();
    while (!ended_ && !state().full()) {
      auto pulled = pull_();
      ended_ = !pulled.has_value();
      if (ended_) return;
      if (!state().Add(pulled->second)) continue;
      current_ = std::move(pulled->first);
      return;
    }
  }
  // Until this rank has a turn, or nobody has.
  void Settle() {
    while (state().AgreeOnRound(current_.has_value()) && !current_.has_value()) Take();
  }

  const Pull pull_;
  std::optional<Batch> current_;
  bool ended_ = false;
};

// Cuts a stream of micro-batches into windows, one for each optimizer step.
//
// Losses are sums; a window knows the items of all its micro-batches on all ranks before its first
// backward and scales once, so neither the gradients nor what is logged depend on how samples are
// split over micro-batches and ranks. Intervals of logging, evaluation and saving, and schedules,
// count optimizer steps.
class Accumulation {
 public:
  // Errors: kInvalidArgument for micro_batches < 1; for no losses, a weight or a given divisor that
  //   is not positive; for an optimizer in backward beside a scaler or kCaller; or if several ranks
  //   train a parameter that is in no unit, whose gradient nobody would sum; those of WindowScale:
  //   windows and nobody else divide the gradients of the model while this object or one of its
  //   windows lives. REQUIRES: the model is sharded already, and outlives this object.
  explicit Accumulation(Module& model, AccumulationOptions options = {},
                        CallSite site = CallSite::Here());
  Accumulation(const Accumulation&) = delete;
  Accumulation& operator=(const Accumulation&) = delete;

  // Takes up to micro_batches batches from `loader`, a callable that returns std::optional of a
  // batch, and agrees with the other ranks on what they hold. `counts`, one for each loss that is
  // divided by items, samples or weights, in order: a loss with Count(batch.labels), or a callable
  // from a batch to a number (of items, samples or weight, whatever divides) or to a BatchCount.
  // Empty when no rank was given a batch. COLLECTIVE.
  // Errors: kInvalidArgument for another number of counts, or a count that does not tell what
  //   divides; kFailedPrecondition if gradients are left, as of a window that was not finished:
  //   Recover drops them.
  template <typename Loader, typename... Counts>
  auto Next(Loader&& loader, const Counts&... counts) {
    using Batch = typename std::invoke_result_t<Loader&>::value_type;
    CheckCounts(sizeof...(Counts), /*needed=*/true);
    auto state = std::make_unique<internal::WindowState>(shared_, /*streaming=*/false);
    std::vector<Batch> batches, nothing_to_learn;
    while (!state->full()) {
      std::optional<Batch> batch = loader();
      if (!batch.has_value()) break;
      const bool held = state->Add(CountAll(*batch, counts...));
      (held ? batches : nothing_to_learn).push_back(std::move(*batch));
    }
    std::optional<Window<Batch>> window;
    if (!state->Agree()) return window;
    if (state->hands_out_all()) batches = std::move(nothing_to_learn);
    window.emplace(std::move(state), std::move(batches));
    return window;
  }

  // As Next, without looking ahead. `loader` is asked for a batch when its turn comes, so it
  // outlives the window; counts may be left out where losses are divided by items, which they
  // report, or by micro-batches. COLLECTIVE. Errors: as Next; kInvalidArgument with more than one
  // loss, since sums of several cannot be divided apart, or with an optimizer in backward.
  template <typename Loader, typename... Counts>
  auto Stream(Loader& loader, const Counts&... counts) {
    using Batch = typename std::invoke_result_t<Loader&>::value_type;
    CheckCounts(sizeof...(Counts), /*needed=*/false);
    CheckStream();
    std::optional<StreamWindow<Batch>> window;
    window.emplace(std::make_unique<internal::WindowState>(shared_, /*streaming=*/true),
                   [this, &loader, counts...]() {
                     std::optional<std::pair<Batch, std::vector<BatchCount>>> pulled;
                     std::optional<Batch> batch = loader();
                     if (!batch.has_value()) return pulled;
                     std::vector<BatchCount> counted = CountAll(*batch, counts...);
                     pulled.emplace(std::move(*batch), std::move(counted));
                     return pulled;
                   });
    if (!window->Any()) window.reset();
    return window;
  }

  // Optimizer steps made. Skipped ones do not count.
  int64_t steps() const { return shared_->steps; }
  // Of a run that goes on. REQUIRES: no window is open; steps >= 0; on all ranks alike.
  void set_steps(int64_t steps) { shared_->steps = steps; }

 private:
  void CheckCounts(size_t counts, bool needed) const;
  void CheckStream() const;
  // What divides the k-th counted loss.
  Divisor CountedDivisor(size_t k) const;
  template <typename Batch, typename... Counts>
  std::vector<BatchCount> CountAll(const Batch& batch, const Counts&... counts) const {
    size_t k = 0;
    return {internal::CountBatch(CountedDivisor(k++), counts, batch)...};
  }

  std::shared_ptr<internal::AccumulationState> shared_;
};

}  // namespace sherd
