#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/axes.h"
#include "sherd/shard/context.h"
#include "sherd/shard/gradients.h"
#include "sherd/shard/ladder.h"
#include "sherd/shard/layout.h"
#include "sherd/shard/stage.h"
#include "sherd/shard/unit_parameter.h"

namespace sherd {

// How a unit is kept, sent and summed.
struct UnitOptions {
  Stage stage;
  MixedPrecision precision;
  // A forward leaves 1/n of the parameters behind on each rank, for a backward that gathers them
  // from n neighbouring ranks only; 1 and 0: everything is freed, but for this rank's pieces.
  int park = 0;
  // Owned pieces, done gradient sums and so the optimizer's state are host memory.
  bool offload = false;
  // Gradients of a unit called several times are added up on each rank and reduced once, after its
  // last call's backward, instead of at each. Memory: the whole gradients of the unit from its
  // first backward to its last.
  bool reduce_once = false;
};

// What a unit does with its gathered parameters when its last open scope closes.
enum class AfterScope {
  kReshard,  // free them
  kPark,     // free all but what UnitOptions::park says
  kKeep,     // hold them for the next scope
  kForNow,   // hold them until a scope of another unit opens; see the note in context.h
};

// How far the gradients of a call go when its backward ends.
enum class GradientSync : uint8_t {
  kNone,     // they stay whole on this rank, and later calls add to them: no communication
  kCutOnly,  // reduced over the axes that cut them, so that they take no more memory than that
  kFull,     // reduced over all axes
};

// The parameters that are gathered and reduced together: their shards, and the choreography of one
// call.
//
// Knows tensors, streams and groups, and nothing of tapes or modules: trainers with a hand-written
// backward call it directly, in this order for each call of the module:
//   EnterForward, (read full(i)), ExitForward; later BeginBackward, (write TakeGradient(i)),
//   EndBackward.
// Its reductions sum, and nobody here divides: that is the caller's, see scale.h.
// Calls nest and repeat; a unit counts its open scopes, forward and backward, and reshards or
// reduces when the count returns to zero.
//
// Memory: the shard always; the gathered parameters from the first open scope to the last; one full
// gradient buffer from BeginBackward until its reduction is done; the gradient shard from the first
// reduction on. With one rank all of them are the shard and the gradient shard, without copies.
// Threads: the thread that runs the model. COLLECTIVE: scopes open and close in one order on all
// ranks.
class Unit final : public StorageOwner {
 public:
  // Errors: kInvalidArgument for options that the mesh cannot have, see ShardContext::AxesOf.
  Unit(std::string name, std::vector<UnitParameter> parameters,
       std::shared_ptr<ShardContext> context, const UnitOptions& options = {});
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  // As given, for messages and counts.
  const std::string& name() const { return name_; }
  const UnitOptions& options() const { return options_; }
  const Layout& layout() const { return layout_; }
  const UnitAxes& axes() const { return axes_; }
  const std::shared_ptr<ShardContext>& context() const { return context_; }
  int parameters() const { return static_cast<int>(parameters_.size()); }
  const std::string& parameter_name(int i) const { return parameters_[At(i)].name; }

  // The whole parameter, as a view that is resident while the unit is gathered; in the dtype of the
  // compute.
  const Tensor& full(int i) const { return full_[At(i)]; }
  // The 1-D piece this rank owns, and its first element's index in the whole parameter.
  const Tensor& local(int i) const { return local_[At(i)]; }
  int64_t local_offset(int i) const { return layout_.PieceOf(i, axes_.piece()).offset; }
  // Of the ranks that own the same pieces, whether this is the one that counts them in a sum over
  // all ranks.
  bool counts_in_norm() const { return axes_.first_replica(); }
  // Whether full(i) can be read, and whether a scope is open.
  bool unsharded() const { return unsharded_; }
  bool open() const { return forward_open_ + backward_open_ > 0; }
  bool in_forward() const { return forward_open_ > 0; }
  bool in_backward() const { return backward_open_ > 0; }
  // The version that the open scope's copy was gathered at.
  int64_t gathered_version() const { return gathered_version_; }

  // Says where the version of the parameters can be asked, so that gathers can be started ahead,
  // and how many units after this one are gathered ahead when it is; see prefetch.h. Without a
  // source nothing is gathered ahead but what Prefetch is called for.
  void SetPrefetch(std::function<int64_t()> version_source, int depth);
  // What the source says now; 0 without one.
  int64_t version() const { return version_source_ ? version_source_() : 0; }
  // What to gather ahead when this unit is gathered in a forward, or in a backward, instead of what
  // followed it before; unset: that.
  void SetPrefetchList(bool backward, std::optional<std::vector<Unit*>> units);
  // `unit` ends: it is on no list any more.
  void ForgetPrefetch(Unit* unit);
  // Whether the last scope that closed left the unit gathered for a scope to come.
  bool stays() const { return stays_; }
  // Starts the gather that the next scope will need, and returns without waiting. Returns whether
  // it is on its way: false when the parameters are gathered already or nobody says their version.
  // COLLECTIVE: in one order on all ranks. Memory: the gathered parameters from now on.
  bool Prefetch();
  // Whether a gather ahead was started that no scope has used yet.
  bool ahead() const { return ahead_; }
  // Returns when no gather reads the shard, before it is written. Errors stay with the gather.
  void AwaitReaders() noexcept;
  // Frees what a gather ahead brought and no scope has used. No effect otherwise.
  void DropPrefetched();

  // `version` tells one state of the parameters from another: a copy gathered at an older one is
  // gathered again. `backward_follows`: the call is recorded, for UnitOptions::reduce_once.
  // Errors: kFailedPrecondition naming the unit if a scope is closed that is not open; a failed
  //   gather or reduction, after which the step has failed on all ranks. A scope whose opening
  //   failed is not open.
  void EnterForward(int64_t version);
  void ExitForward(AfterScope after = AfterScope::kReshard, bool backward_follows = false);
  void BeginBackward(int64_t version);
  void EndBackward(AfterScope after = AfterScope::kReshard);
  // Leave a scope while unwinding: no communication, gradients of the call are dropped.
  void AbandonForward() noexcept;
  void AbandonBackward() noexcept;

  // Where the next contribution to the gradient of parameter i goes, in the parameter's own dtype.
  // Errors: kFailedPrecondition, naming the parameter, if it is frozen, and outside BeginBackward
  // and EndBackward, naming the unit.
  UnitGradient TakeGradient(int i);
  // How far gradients go from the next EndBackward on; kFull at first.
  void SetSync(GradientSync sync) { sync_ = sync; }
  GradientSync sync() const { return sync_; }
  // Reduces what EndBackward has left. Returns while that is on its way. COLLECTIVE, with no
  // message if nothing was left. REQUIRES: no backward scope is open.
  void FinishGradients();
  // Calls `done` on the model's thread when the gradients of a unit are whole and on all ranks
  // known to be used or not: from the next EndBackward on that no recorded call is left to follow,
  // once for each call of this, soon after the reduction has ended. Null: not any more.
  void WhenWhole(std::function<void(Unit&)> done) { when_whole_ = std::move(done); }
  bool awaits_whole() const { return when_whole_ != nullptr; }
  // What WhenWhole asked for, once the reduction is done; see ShardContext::RunWhole.
  void RunWhenWhole();
  // Forgets all gradients and gives their memory back.
  void DropGradients() { gradients_.Drop(); }
  // Whether a backward left something to be finished; on all ranks alike if they opened the same
  // scopes.
  bool gradients_pending() const { return gradients_.pending(); }
  // The outermost backward has ended: calls whose backward never came are forgotten, and what was
  // kept for them is reduced as far as sync() says. COLLECTIVE as FinishGradients.
  void EndOfBackward();
  // Reduces what backwards with a shorter sync() have left, as far as it says now. COLLECTIVE as
  // FinishGradients. REQUIRES: no call is open.
  void ReduceHeld();

  // The reduced gradient of local(i), or an undefined tensor if there is none. Waits for
  // reductions.
  Tensor LocalGradient(int i);
  // Like LocalGradient, but also when only other ranks may have contributed: then perhaps zeros.
  // Defined on all ranks alike.
  Tensor HeldGradient(int i) { return gradients_.Done(i); }
  // Whether this rank contributed to the gradient of parameter i; MarkUsed says that another one
  // did.
  bool used(int i) const { return gradients_.used(i); }
  void MarkUsed(int i) { gradients_.MarkUsed(i); }
  void ClearGradient(int i) { gradients_.Clear(i); }
  // Freezes a parameter, or the opposite; it stays where it is, in a segment whose others are
  // reduced if one of them trains. Errors: kFailedPrecondition, naming the parameter, in a scope or
  // while gradients are held. On all ranks alike.
  void SetTrainable(int i, bool trainable);

  // Frees the gathered parameters now. No effect when they are not there, and with an open scope.
  void Reshard() { Release(/*park=*/false); }
  // After a failure: no open scopes, no gradients, resharded.
  void Clear();

  // The context's event log has changed. See ShardContext::SetEvents.
  void NameEvents(EventLog* log);

  // Collectives so far: gathers of the whole, reductions of a call's gradients.
  int64_t gathers() const { return gathers_; }
  int64_t reductions() const { return gradients_.reductions(); }

  // Tells ranks without a micro-batch to make a call of this unit too; see announcer.h. Those above
  // do it themselves.
  void Announce(UnitCall::Kind kind, int argument = 0) const;

  std::string DescribeAbsent(const Storage& storage, int64_t byte_offset) const override;

 private:
  static size_t At(int i) { return static_cast<size_t>(i); }
  // Errors: kFailedPrecondition naming the unit unless `scopes` of that kind are open.
  void CheckOpen(int scopes, const char* op) const;
  // Makes the gathered parameters be there, as of `version`; waits for the gather.
  void Unshard(int64_t version);
  void StartGather(int64_t version);
  void AwaitGather();
  void Release(bool park);
  // An event of this unit in the open part of the step.
  Event EventOf(EventKind kind, EventPhase phase, EventOp op = EventOp::kNone) const;
  Event ForwardEvent() const;
  void Settle(AfterScope after);

  const std::string name_;
  const std::vector<UnitParameter> parameters_;
  const std::shared_ptr<ShardContext> context_;
  const UnitOptions options_;
  const UnitAxes axes_;
  const Layout layout_;
  Ladder ladder_;
  GradientSums gradients_;
  std::vector<Tensor> full_;  // views, one for each parameter, as are the others
  std::vector<Tensor> local_;
  bool unsharded_ = false;  // gathered, or on the way
  bool ahead_ = false;      // gathered ahead, and no scope has opened since
  Work gather_;             // the last one
  int64_t gathered_version_ = -1;
  std::function<int64_t()> version_source_;
  std::function<void(Unit&)> when_whole_;
  int prefetch_depth_ = 0;
  std::optional<std::vector<Unit*>> prefetch_lists_[2];  // of forward and backward
  bool stays_ = false;
  GradientSync sync_ = GradientSync::kFull;
  int forward_open_ = 0;
  int backward_open_ = 0;
  bool owes_reduction_ = false;  // an EndBackward waited for calls to come
  int calls_ahead_ = 0;          // recorded calls whose backward has not come yet
  int64_t gathers_ = 0;
  EventLog* events_ = nullptr;
  int event_unit_ = 0;
  const char* phase_ = "not called yet";
};

}  // namespace sherd
