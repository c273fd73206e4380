#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/shard/context.h"
#include "sherd/shard/loss_terms.h"
#include "sherd/shard/window_options.h"
#include "sherd/shard/window_scale.h"

namespace sherd::internal {

// What the windows of one Accumulation share. Held by the Accumulation and by its windows.
struct AccumulationState {
  // Those of the model, parents first, found once: a step asks for them several times.
  using Units = std::vector<Unit*>;

  Module& model;
  const AccumulationOptions options;
  const std::shared_ptr<ShardContext> context;  // null for a model that is not sharded
  const Units units;
  int64_t steps = 0;       // optimizer steps made
  bool described = false;  // the effective batch was logged
  std::unique_ptr<WindowScale> scale = nullptr;

  int ranks() const { return context != nullptr ? context->size() : 1; }
  int rank() const { return context != nullptr ? context->rank() : 0; }
};

// What the ranks have, or have reported, of one LossTerm.
struct TermSums {
  int64_t items = 0;
  int64_t told_items = 0;  // micro-batches whose count told their items
  int64_t samples = 0;
  double weight = 0.0;
  double loss = 0.0;  // what the losses reported
  int64_t reported = 0;
};

// What a window does, without the type of the batches. Public headers hold it by pointer.
class WindowState {
 public:
  explicit WindowState(std::shared_ptr<AccumulationState> shared, bool streaming);
  // Left before Finish: ranks that follow this one are told. Never throws.
  ~WindowState();
  WindowState(const WindowState&) = delete;
  WindowState& operator=(const WindowState&) = delete;

  const std::vector<LossTerm>& terms() const { return shared_->options.losses; }

  // Whether this rank was given as many batches as the options say.
  bool full() const { return given_ == shared_->options.micro_batches; }
  // Adds a batch of this rank, with one count for each counted term; a streaming window may have
  // none. Returns whether there is something to learn in it; otherwise it is not held.
  // Errors: kInvalidArgument for a count that is negative or does not tell what divides.
  bool Add(std::span<const BatchCount> counts);
  // Agrees with all ranks on what each holds. Returns false when no rank was given a batch.
  // COLLECTIVE. Errors: kFailedPrecondition after a failure, or if a parameter still holds a
  // gradient.
  bool Agree();
  // Whether all batches are handed out though there is nothing to learn in any on any rank.
  bool hands_out_all() const { return hands_out_all_; }
  // Of a streaming window. The first batch of each rank is there, or there is none: whether any
  // rank was given one. Then, before each micro-batch: whether any rank `has` one; ranks that have
  // none take part in it, and ask again. COLLECTIVE. Errors: as Agree.
  bool AgreeOnFirst(bool has);
  bool AgreeOnRound(bool has);

  // Errors: kFailedPrecondition the second time.
  void BeginIteration();
  // This rank takes its batch `index` now.
  void BeginMicroBatch(int64_t index);

  // See Window.
  void Backward(std::span<const LossSum> losses, CallSite site);
  StepResult Finish(Optimizer& optimizer, const Schedule& schedule, const FinishOptions& options,
                    CallSite site);
  void Discard(CallSite site);
  [[noreturn]] void RefuseScalar(const Variable& loss, CallSite site) const;

  // See Window. Items and micro-batches of a streaming window are known when it is finished.
  int64_t step() const { return shared_->steps + 1; }
  int64_t items(size_t term) const { return terms_[term].items; }
  // Of all ranks.
  int64_t micro_batches() const { return held_everywhere_; }

 private:
  // What the ranks agree on before a step.
  struct Verdict {
    double norm = 0.0;
    bool finite = true;    // the gradients' norm
    double unscale = 1.0;  // what makes the sums the gradients of the loss
  };
  bool several_ranks() const { return shared_->ranks() > 1; }
  void CheckClean() const;
  // Of micro-batches that only some ranks have. Errors: kInvalidArgument on all ranks if those
  // without one cannot follow.
  void CheckFollowed() const;
  // The first agreement is done: the window is open.
  void Open();
  void AgreeOnCounts();
  // A number of each rank, on all.
  std::vector<int64_t> GatherCounts(int64_t mine) const;
  // By what the sum of a term is divided; 0 where there is nothing to divide.
  double DivisorOf(size_t term) const;
  // By what a window divides it: by 1 where the caller does (ScaleBy::kCaller).
  double DividedBy(size_t term) const { return shared_->scale->divides() ? DivisorOf(term) : 1.0; }
  // Tells the units how far the gradients of micro-batch `index` go.
  void SetSync(int64_t index) const;
  // Micro-batch `index` begins, which ranks in `has` compute.
  void Begin(int64_t index, const std::vector<bool>& has);
  std::vector<bool> WhoHas(int64_t index) const;
  bool AllHave(int64_t index) const;
  // Makes the calls of micro-batches that this rank does not have.
  void FollowRest();
  // Whether the loss has no items to sum over.
  bool IsEmpty(size_t term, const LossSum& loss) const;
  // Which losses are seeded with what.
  void Seed(std::span<const LossSum> losses, std::vector<Variable>& roots,
            std::vector<Tensor>& seeds) const;
  void CheckBackward(std::span<const LossSum> losses, const ErrorContext& what) const;
  void CheckFinish(const Optimizer& optimizer, const FinishOptions& options,
                   const ErrorContext& what) const;
  // Sums over all ranks what they must agree on before the step.
  // COLLECTIVE.
  Verdict Reduce(NormType norm);
  // Errors: kFailedPrecondition on all ranks if losses reported other items than were counted.
  void CheckReported(const ErrorContext& what) const;
  // Drops the gradients and throws, naming what is not finite. COLLECTIVE.
  [[noreturn]] void RefuseNonFinite(const ErrorContext& what);
  // What happened, but for what the optimizer did.
  StepResult Describe(const Verdict& verdict) const;
  // Logs, on rank 0 and once, how much a step learns from and what divides it.
  void LogEffectiveBatch(const StepResult& result);
  // Why the step is skipped. Errors: those of RefuseNonFinite.
  StepSkip Judge(const Verdict& verdict, const FinishOptions& options, const ErrorContext& what);
  // Runs the parameters' hooks for this window, if there are any, on gradients that are multiplied
  // by `unscale` first. Returns whether there were.
  bool RunHooks(double unscale);
  // The window is over: nothing holds a gradient.
  void Close();
  EventLog* events() const {
    return shared_->context != nullptr ? shared_->context->events() : nullptr;
  }

  const std::shared_ptr<AccumulationState> shared_;
  const bool streaming_;
  std::vector<TermSums> terms_;
  bool counted_ = false;        // of a streaming window: its batches came with counts
  int64_t given_ = 0;           // batches this rank was given
  int64_t held_ = 0;            // of those, micro-batches to compute
  std::vector<int64_t> holds_;  // micro-batches by rank
  int64_t given_everywhere_ = 0;
  int64_t held_everywhere_ = 0;
  int64_t rounds_ = 0;     // the most that a rank holds; of a streaming window, so far
  int64_t entered_ = 0;    // micro-batches that were begun, by this rank or those it follows
  int64_t backwards_ = 0;  // of this rank
  bool hands_out_all_ = false;
  bool iterated_ = false;
  std::vector<int64_t> first_round_;    // of a streaming window, until it is entered
  std::optional<std::string> failure_;  // of an earlier backward
  bool finished_ = false;
  std::shared_ptr<double> stepped_squares_;  // of the norm, from units stepped in backward
};

}  // namespace sherd::internal
