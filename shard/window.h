#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/shard/clip_grad.h"
#include "sherd/shard/context.h"
#include "sherd/shard/loss_scaler.h"
#include "sherd/shard/optimizer_in_backward.h"

namespace sherd {

// When a window's gradients are reduced.
enum class WindowSync : uint8_t {
  // Each micro-batch is reduced over the axes that cut the gradients, the last one over all: least
  // memory, and the fewest bytes between the copies of a hybrid mesh.
  kCutEach,
  // Each micro-batch is reduced over all axes.
  kFullEach,
  // Nothing is sent before the last micro-batch. Memory: the whole gradients of the model.
  kLast,
  // As the caller's SetGradientSync says for each unit; what is left is reduced by Finish.
  kCaller,
};

// How samples are cut into steps.
struct AccumulationOptions {
  // Micro-batches each rank takes for one optimizer step.
  int64_t micro_batches = 1;
  // When gradients are sent. The sums are the same.
  WindowSync sync = WindowSync::kCutEach;
  // Of f16 training: seeds are multiplied by its scale and gradients divided by it; Finish tells it
  // the verdict of all ranks. The caller's; outlives the Accumulation.
  LossScaler* scaler = nullptr;
  // Steps units inside the last micro-batch's backward; the optimizer to give to Finish. The
  // caller's; outlives the Accumulation.
  OptimizerInBackward* in_backward = nullptr;
};

// What one step does with the summed gradients.
struct FinishOptions {
  // From the caller's schedule, for this step.
  double learning_rate = 1e-3;
  // Largest norm of all gradients together; larger ones are scaled down to it. 0: no clipping.
  double clip = 0.0;
  NormType norm = NormType::kTwo;
};

// One optimizer step, the same on all ranks.
struct StepResult {
  int64_t step = 0;        // counted from 1
  double loss = 0.0;       // mean over the items of all ranks and micro-batches
  int64_t items = 0;       // what was divided by
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  // The norm was not finite: nothing was updated, the gradients were dropped.
  bool skipped = false;
};

namespace internal {

// What a window does, without the type of the batches.
class WindowState {
 public:
  // Those of the model, parents first, found once: a step asks for them several times.
  using Units = std::shared_ptr<const std::vector<Unit*>>;

  WindowState(Module& model, std::shared_ptr<ShardContext> context, Units units, int64_t step,
              const AccumulationOptions& options)
      : model_(model),
        context_(std::move(context)),
        units_(std::move(units)),
        step_(step),
        options_(options) {}

  // Agrees with all ranks. Returns false when no rank has a micro-batch. COLLECTIVE.
  // Errors: kFailedPrecondition after a failure, or if a parameter still holds a gradient.
  bool Agree(int64_t micro_batches, int64_t items);
  // See Window.
  void Backward(const LossSum& loss, CallSite site);
  StepResult Finish(Optimizer& optimizer, const FinishOptions& options, CallSite site);

  int64_t step() const { return step_; }
  int64_t items() const { return items_; }

 private:
  // What the ranks agree on before a step.
  struct Verdict {
    double loss_sum = 0.0;
    double norm = 0.0;
    bool found_inf = false;
    int64_t reported_items = 0;
  };
  void CheckClean() const;
  // Whether there are micro-batches; makes items_ those of all ranks.
  bool AgreeOnCounts();
  // Tells the units how far the gradients of the next micro-batch go.
  void SetSync() const;
  void CheckFinish(const Optimizer& optimizer, const FinishOptions& options,
                   const ErrorContext& what) const;
  Verdict Reduce(NormType norm);
  // Steps or skips, tells the scaler, and writes what happened.
  StepResult Apply(const Verdict& verdict, double unscale, Optimizer& optimizer,
                   const FinishOptions& options);
  // Runs the parameters' hooks for this window, if there are any, on gradients that are multiplied
  // by `unscale` first. Returns whether there were.
  bool RunHooks(double unscale);
  EventLog* events() const { return context_ != nullptr ? context_->events() : nullptr; }

  Module& model_;
  const std::shared_ptr<ShardContext> context_;
  const Units units_;
  const int64_t step_;
  const AccumulationOptions options_;
  int64_t micro_batches_ = 0;
  int64_t items_ = 0;
  int64_t backwards_ = 0;
  std::optional<std::string> failure_;  // of an earlier backward
  bool finished_ = false;
  int64_t reported_items_ = 0;
  double loss_sum_ = 0.0;
  std::shared_ptr<double> stepped_squares_;  // of the norm, from units stepped in backward
};

// The items of a batch: what the loss's Count says of its labels, or what a callable returns.
template <typename Count, typename Batch>
int64_t CountItems(const Count& count, const Batch& batch) {
  if constexpr (requires { count.Count(batch.labels); }) {
    return count.Count(batch.labels);
  } else {
    return count(batch);
  }
}

}  // namespace internal

// The micro-batches of one optimizer step on this rank, and the only place where anything is
// divided.
//
// Iterate over it, call Backward once for each micro-batch, then Finish.
template <typename Batch>
class Window {
 public:
  Window(internal::WindowState state, std::vector<Batch> batches)
      : state_(std::move(state)), batches_(std::move(batches)) {}

  // The batches of this rank, in the loader's order.
  auto begin() const { return batches_.begin(); }
  auto end() const { return batches_.end(); }
  // The number of the step this window makes, from 1; and its items on all ranks together.
  int64_t step() const { return state_.step(); }
  int64_t items() const { return state_.items(); }

  // Backward of loss / items() over the tape of the current Recording, then resets that tape.
  // COLLECTIVE. Errors: kFailedPrecondition without a Recording; those of Tape::Backward. After
  // them the
  //   tape is reset too and this window refuses everything: call Recover and take the next one.
  void Backward(const LossSum& loss, CallSite site = CallSite::Here()) {
    state_.Backward(loss, site);
  }

  // Norm, one verdict, clip, step, zero, in this order and together on all ranks. COLLECTIVE.
  // Errors: kFailedPrecondition, with nothing changed, if a micro-batch had no backward or the
  // losses
  //   reported other item counts than were agreed on, after a failed Backward, or the second time.
  StepResult Finish(Optimizer& optimizer, const FinishOptions& options,
                    CallSite site = CallSite::Here()) {
    return state_.Finish(optimizer, options, site);
  }

 private:
  internal::WindowState state_;
  std::vector<Batch> batches_;
};

// Cuts a stream of micro-batches into windows, one for each optimizer step.
//
// Losses are sums; a window knows the items of all its micro-batches on all ranks before its first
// backward and scales once, so the result does not depend on how samples are split.
class Accumulation {
 public:
  // Errors: kInvalidArgument for micro_batches < 1, for an optimizer in backward beside a scaler or
  //   kCaller, or if several ranks train a parameter that is
  // in no unit,
  //   whose gradient nobody would sum. REQUIRES: the model is sharded already, and outlives this
  //   object.
  explicit Accumulation(Module& model, AccumulationOptions options = {});

  // Takes up to micro_batches batches from `loader`, a callable that returns std::optional of a
  // batch, and agrees with the other ranks on their items. `count` is a loss with
  // Count(batch.labels), or a callable from a batch to its items. Empty when no rank has a batch
  // left. COLLECTIVE. Errors: kInvalidArgument on all ranks if they hold different numbers of
  // micro-batches;
  //   kFailedPrecondition if gradients are left, as of a window that was not finished: Recover
  //   drops them.
  template <typename Loader, typename Count>
  auto Next(Loader&& loader, const Count& count) {
    using Batch = typename std::invoke_result_t<Loader&>::value_type;
    std::vector<Batch> batches;
    int64_t items = 0;
    while (static_cast<int64_t>(batches.size()) < options_.micro_batches) {
      std::optional<Batch> batch = loader();
      if (!batch.has_value()) break;
      items += internal::CountItems(count, *batch);
      batches.push_back(std::move(*batch));
    }
    internal::WindowState state(model_, context_, units_, steps_ + 1, options_);
    std::optional<Window<Batch>> window;
    if (!state.Agree(static_cast<int64_t>(batches.size()), items)) return window;
    ++steps_;
    window.emplace(std::move(state), std::move(batches));
    return window;
  }

 private:
  Module& model_;
  const AccumulationOptions options_;
  const std::shared_ptr<ShardContext> context_;
  const internal::WindowState::Units units_;
  int64_t steps_ = 0;
};

}  // namespace sherd
