#include "sherd/checkpoint/checkpoint.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/checkpoint/internal/budget_lease.h"
#include "sherd/checkpoint/internal/offloaded_region.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace internal {
namespace {

// The variables of a result that were born at `home`, each once, in the order of the visit.
std::vector<Variable> BornAt(CallRecord& record, const Ref<Home>& home) {
  std::vector<Variable> born;
  record.VisitResult([&](Variable& variable) {
    if (!variable.ident() || !(variable.ident()->home == home)) return;
    for (const Variable& known : born) {
      if (known.ident() == variable.ident()) return;
    }
    born.push_back(variable);
  });
  return born;
}

// Gives up the result of a recompute, also when it throws: its wrappers may, after the body has
// run.
struct ResultDropper {
  CallRecord& record;
  ~ResultDropper() { record.DropResult(); }
};

// Where a region is, for messages.
std::string Describe(const CallContext& call) {
  if (call.module() != nullptr) {
    return absl::StrCat("the checkpointed call of ", PathOf(call.module()));
  }
  const std::string path = CurrentModulePath();
  return path.empty() ? "a checkpointed function"
                      : absl::StrCat("a checkpointed function in ", path);
}

// What a checkpointed call keeps from its first pass to its backward.
struct Held {
  std::unique_ptr<RegionNotes> notes;
  std::unique_ptr<BudgetLease> lease;
  std::unique_ptr<OffloadedRegion> offloaded;
  std::vector<std::shared_ptr<const Module>> modules;
};

// The node a checkpointed call leaves on the tape. Its backward records the call on a tape of its
// own and walks that at once; gradients of outer variables go to the table both walks share.
class CheckpointOp final : public Op {
 public:
  CheckpointOp(CallContext call, CallFrame frame, Held held, std::shared_ptr<CheckpointStats> stats,
               std::string region)
      : call_(std::move(call)),
        frame_(std::move(frame)),
        held_(std::move(held)),
        stats_(std::move(stats)),
        region_(std::move(region)) {}
  CheckpointOp(CheckpointOp&&) = default;
  ~CheckpointOp() override {
    if (stats_ != nullptr && held_.notes != nullptr) stats_->kept_bytes -= held_.notes->kept_bytes;
  }

  std::string_view name() const override { return "checkpoint"; }
  OpKind kind() const override { return OpKind::kRegion; }
  void Plan(std::span<const Tensor>, OpPlan&) const override {
    SHERD_CHECK(false, "a checkpoint is not applied as an op");
  }
  void Forward(OpForward&) const override {
    SHERD_CHECK(false, "a checkpoint is not applied as an op");
  }
  void Backward(OpBackward& b) const override;

  void SetOutputs(const std::vector<Variable>& outputs) {
    for (const Variable& output : outputs) outputs_.push_back({output.dtype(), output.shape()});
  }

 private:
  void CheckSame(const std::vector<Variable>& outputs, const Replay& replay) const;

  CallContext call_;
  CallFrame frame_;
  Held held_;
  std::shared_ptr<CheckpointStats> stats_;
  std::string region_;
  std::vector<TensorSpec> outputs_;
};

void CheckpointOp::CheckSame(const std::vector<Variable>& outputs, const Replay& replay) const {
  const auto ops = static_cast<int64_t>(held_.notes->ops.size());
  if (outputs.size() != outputs_.size() || replay.ordinal() != ops) {
    replay.Differs(absl::StrCat("the first run made ", ops, " ops and ", outputs_.size(),
                                " outputs, this one ", replay.ordinal(), " and ", outputs.size()));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].dtype() == outputs_[k].dtype && outputs[k].shape() == outputs_[k].shape)
      continue;
    replay.Differs(absl::StrCat("output ", k, " was ", std::string(NameOf(outputs_[k].dtype)), " ",
                                outputs_[k].shape.ToString(), ", now ",
                                outputs[k].value().ToString()));
  }
}

void CheckpointOp::Backward(OpBackward& b) const {
  Walk& walk = b.walk();
  TapeImpl tape(walk.tape().family);
  RegionNotes& notes = *held_.notes;
  if (held_.offloaded != nullptr) held_.offloaded->Restore(notes, b.retain());
  Replay replay(notes, region_, b.retain());
  Recorder recorder;
  recorder.outer = &walk.level();
  recorder.tape = &tape;
  recorder.home = tape.home;
  recorder.first_birth = tape.family->births;
  recorder.recompute = true;
  recorder.replay = &replay;
  std::vector<Variable> outputs;
  {
    const RecorderGuard on(&recorder);
    const FrameGuard frame(frame_);
    const ResultDropper drop{call_.record()};
    call_.Proceed();
    outputs = BornAt(call_.record(), tape.home);
  }
  if (held_.offloaded != nullptr && b.retain()) held_.offloaded->Release(notes);
  CheckSame(outputs, replay);
  if (stats_ != nullptr) {
    ++stats_->recomputes;
    stats_->repeated_ops += replay.computed();
    stats_->repeated_flops += replay.computed_flops();
  }
  std::vector<Ref<Ident>> roots;
  std::vector<Tensor> seeds;
  for (size_t k = 0; k < outputs.size(); ++k) {
    Tensor seed = b.TakeGrad(static_cast<int>(k));
    if (!seed.defined()) continue;
    roots.push_back(outputs[k].ident());
    seeds.push_back(std::move(seed));
  }
  outputs.clear();
  Walk(tape, walk.table(), recorder, /*retain=*/false).Run(roots, seeds);
}

class CheckpointInterceptor final : public Interceptor {
 public:
  explicit CheckpointInterceptor(CheckpointOptions options) {
    state_.stats = options.stats != nullptr ? options.stats : std::make_shared<CheckpointStats>();
    state_.options = std::move(options);
    state_.has_module = true;
  }
  void Around(const CallContext& call) override { RunCheckpointed(call, state_); }
  const CheckpointStats& stats() const { return *state_.stats; }

 private:
  CheckpointState state_;
};

// Says or refuses that a call with so many calls of units inside is a checkpoint.
void CheckOrder(const CallContext& call, CheckpointState& state, int64_t gatherings,
                GatheringScope* first) {
  const CheckpointOptions& options = state.options;
  if (gatherings < 2 || options.wrong_order == WrongOrder::kAllow) return;
  const std::string text = absl::StrCat(
      Describe(call), " is around ", gatherings,
      " calls of sharded units: each is gathered three times for one backward instead of twice, "
      "and "
      "not ahead of time; write FullyShard(Checkpoint(block), mesh) for each block, or set "
      "wrong_order = kAllow");
  if (options.wrong_order == WrongOrder::kError) {
    ThrowFailedPrecondition(text, {.op = "checkpoint"});
  }
  if (state.has_module && std::exchange(state.warned, true)) return;
  if (!state.has_module && (first == nullptr || !first->TakeFirst())) return;
  if (options.log) {
    options.log({LogLevel::kWarning, -1, text});
  } else if (first != nullptr) {
    first->Report(LogLevel::kWarning, text);
  }
}

// Runs the call as a part of the region that is in its first pass.
void RunNested(const CallContext& call, CheckpointState& state, RegionNotes& notes) {
  struct Bracket {
    RegionNotes& notes;
    explicit Bracket(RegionNotes& n) : notes(n) { notes.EnterNested(); }
    ~Bracket() { notes.LeaveNested(); }
  };
  const int64_t before = notes.gatherings;
  {
    const Bracket bracket(notes);
    call.Proceed();
  }
  CheckOrder(call, state, notes.gatherings - before, notes.first_gathering);
}

// What the first pass keeps.
RegionNotes::KeepRule RuleOf(const CheckpointOptions& options, BudgetLease* lease) {
  if (lease == nullptr) return options.policy;
  const KeepPolicy first = options.policy ? options.policy : KeepMatmuls();
  return [lease, first](const OpInfo& op) { return lease->Keeps(op, first); };
}

// Settles what is kept of a first pass, and counts it.
void Settle(Held& held, const CallContext& call, const CheckpointState& state, bool recompute) {
  RegionNotes& notes = *held.notes;
  notes.Decide(state.options.early_stop);
  notes.keep_rule = {};
  if (held.lease != nullptr) held.lease->Settle(notes, state.options.early_stop);
  if (state.options.offload != nullptr && notes.kept_bytes > 0) {
    std::vector<const Storage*> stays;
    call.record().VisitResult([&](Variable& variable) {
      if (variable.defined()) stays.push_back(variable.value().storage().get());
    });
    held.offloaded =
        std::make_unique<OffloadedRegion>(state.options.offload, notes, stays, Describe(call));
  }
  if (call.module() != nullptr) held.modules = call.module()->HoldAlive();
  if (state.stats == nullptr) return;
  CheckpointStats& stats = *state.stats;
  ++stats.calls;
  stats.ops += static_cast<int64_t>(notes.ops.size());
  for (const OpNote& note : notes.ops) {
    if (note.replayed == Replayed::kKept) ++stats.kept_ops;
    if (!recompute || note.is_view) continue;
    ++stats.repeated_ops;  // the recompute of a region around this one runs it a second time
    stats.repeated_flops += note.flops;
  }
  stats.kept_bytes += notes.kept_bytes;
  stats.peak_kept_bytes = std::max(stats.peak_kept_bytes, stats.kept_bytes);
  if (held.offloaded != nullptr) stats.offloaded_bytes += held.offloaded->bytes();
}

}  // namespace

void RunCheckpointed(const CallContext& call, CheckpointState& state) {
  ThreadState& thread = CurrentThread();
  Recorder* outer = thread.recorder;
  if (outer == nullptr) return call.Proceed();
  if (outer->notes != nullptr) return RunNested(call, state, *outer->notes);
  // In the recompute of a region around this one, this one is one op.
  if (outer->replay != nullptr) outer->replay->Next("checkpoint");

  const CallFrame frame = *thread.frame;
  Held held;
  if (state.options.budget != nullptr) {
    held.lease = std::make_unique<BudgetLease>(state.options.budget);
  }
  held.notes = std::make_unique<RegionNotes>(RuleOf(state.options, held.lease.get()));
  RegionNotes& notes = *held.notes;
  Recorder region;
  region.outer = outer;
  region.tape = outer->tape;
  region.notes = &notes;
  region.home = MakeRef<Home>(Describe(call));
  region.first_birth = outer->tape->family->births;
  region.recompute = outer->recompute;
  {
    const RecorderGuard on(&region);
    call.Proceed();
  }
  CheckOrder(call, state, notes.gatherings, notes.first_gathering);
  outer->tape->ops += notes.recorded;
  const std::vector<Variable> born = BornAt(call.record(), region.home);
  // A rank that only participates in calls of a unit still runs the region again with its peers.
  const bool always_live = notes.always_live;
  if (born.empty() && !always_live) return;
  Settle(held, call, state, ScopeGuard::InRecompute());

  const NodeSizes sizes{
      .inputs = notes.outer.size(), .outputs = born.size(), .reads = notes.parameters.size()};
  std::vector<Ref<Ident>> inputs = std::move(notes.outer);
  std::vector<ParameterRead> reads = std::move(notes.parameters);
  CheckpointOp op(call, frame, std::move(held), state.stats, Describe(call));
  op.SetOutputs(born);
  Node& node = outer->tape->AddNode(ValueOf(op), sizes);
  if (!born.empty()) node.device = born[0].value().device();
  node.always_live = always_live;
  node.module = call.module() != nullptr ? call.module() : thread.frame->module;
  if (!notes.observers.empty()) outer->tape->regions.push_back({&node, notes.observers});
  std::move(inputs.begin(), inputs.end(), node.inputs.begin());
  std::move(reads.begin(), reads.end(), node.reads.begin());
  for (Ref<Ident>& output : node.outputs) output = outer->tape->NewIdent(outer->home);
  call.record().VisitResult([&](Variable& variable) {
    for (size_t k = 0; k < born.size(); ++k) {
      if (variable.ident() == born[k].ident()) {
        variable = Variable(variable.value(), node.outputs[k]);
        return;
      }
    }
  });
}

void AddCheckpoint(Module& module, CheckpointOptions options) {
  module.AddInterceptor(std::make_shared<CheckpointInterceptor>(std::move(options)));
}

void RefuseInterval(int64_t n) {
  ThrowInvalidArgument(absl::StrCat("every ", n, "-th module; n is at least 1"),
                       {.op = "CheckpointEvery"});
}

}  // namespace internal

CheckpointStats StatsOf(const Module& module) {
  CheckpointStats sum;
  for (const auto& interceptor : module.interceptors()) {
    const auto* checkpoint =
        dynamic_cast<const internal::CheckpointInterceptor*>(interceptor.get());
    if (checkpoint != nullptr) return checkpoint->stats();
  }
  return sum;
}

}  // namespace sherd
