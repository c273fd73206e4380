#include "sherd/checkpoint/checkpoint.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/tape_impl.h"
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
  return call.module() != nullptr
             ? absl::StrCat("the checkpointed call of ", PathOf(call.module()))
             : absl::StrCat("a checkpointed function in ", CurrentModulePath());
}

// The node a checkpointed call leaves on the tape. Its backward records the call on a tape of its
// own and walks that at once; gradients of outer variables go to the table both walks share.
class CheckpointOp final : public Op {
 public:
  CheckpointOp(CallContext call, CallFrame frame, std::unique_ptr<RegionNotes> notes,
               std::shared_ptr<CheckpointStats> stats, std::string region)
      : call_(std::move(call)),
        frame_(std::move(frame)),
        notes_(std::move(notes)),
        stats_(std::move(stats)),
        region_(std::move(region)) {}
  CheckpointOp(CheckpointOp&&) = default;
  ~CheckpointOp() override {
    if (stats_ != nullptr && notes_ != nullptr) stats_->kept_bytes -= notes_->kept_bytes;
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
  std::unique_ptr<RegionNotes> notes_;
  std::shared_ptr<CheckpointStats> stats_;
  std::string region_;
  std::vector<TensorSpec> outputs_;
};

void CheckpointOp::CheckSame(const std::vector<Variable>& outputs, const Replay& replay) const {
  const auto ops = static_cast<int64_t>(notes_->ops.size());
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
  Replay replay(*notes_, region_, b.retain());
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
  CheckSame(outputs, replay);
  if (stats_ != nullptr) {
    ++stats_->recomputes;
    stats_->repeated_ops += replay.computed();
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
  explicit CheckpointInterceptor(CheckpointOptions options)
      : options_(std::move(options)), stats_(std::make_shared<CheckpointStats>()) {
    if (options_.stats != nullptr) stats_ = options_.stats;
  }
  void Around(const CallContext& call) override { RunCheckpointed(call, options_, stats_); }
  const CheckpointStats& stats() const { return *stats_; }

 private:
  const CheckpointOptions options_;
  std::shared_ptr<CheckpointStats> stats_;
};

// Runs the call as a part of the region that is in its first pass.
void RunNested(const CallContext& call, RegionNotes& notes) {
  struct Bracket {
    RegionNotes& notes;
    explicit Bracket(RegionNotes& n) : notes(n) { notes.EnterNested(); }
    ~Bracket() { notes.LeaveNested(); }
  };
  const Bracket bracket(notes);
  call.Proceed();
}

}  // namespace

void RunCheckpointed(const CallContext& call, const CheckpointOptions& options,
                     const std::shared_ptr<CheckpointStats>& stats) {
  ThreadState& thread = CurrentThread();
  Recorder* outer = thread.recorder;
  if (outer == nullptr) return call.Proceed();
  if (outer->notes != nullptr) return RunNested(call, *outer->notes);
  // In the recompute of a region around this one, this one is one op.
  if (outer->replay != nullptr) outer->replay->Next("checkpoint");

  const CallFrame frame = *thread.frame;
  auto notes = std::make_unique<RegionNotes>(options.policy);
  Recorder region;
  region.outer = outer;
  region.tape = outer->tape;
  region.notes = notes.get();
  region.home = MakeRef<Home>(Describe(call));
  region.first_birth = outer->tape->family->births;
  region.recompute = outer->recompute;
  {
    const RecorderGuard on(&region);
    call.Proceed();
  }
  outer->tape->ops += notes->recorded;
  const std::vector<Variable> born = BornAt(call.record(), region.home);
  if (born.empty()) return;
  notes->Decide(options.early_stop);
  if (stats != nullptr) {
    ++stats->calls;
    stats->ops += static_cast<int64_t>(notes->ops.size());
    stats->kept_ops += static_cast<int64_t>(notes->kept.size());
    stats->kept_bytes += notes->kept_bytes;
    stats->peak_kept_bytes = std::max(stats->peak_kept_bytes, stats->kept_bytes);
  }

  const NodeSizes sizes{
      .inputs = notes->outer.size(), .outputs = born.size(), .reads = notes->parameters.size()};
  std::vector<Ref<Ident>> inputs = std::move(notes->outer);
  std::vector<ParameterRead> reads = std::move(notes->parameters);
  CheckpointOp op(call, frame, std::move(notes), stats, Describe(call));
  op.SetOutputs(born);
  Node& node = outer->tape->AddNode(ValueOf(op), sizes);
  node.device = born[0].value().device();
  node.module = call.module() != nullptr ? call.module() : thread.frame->module;
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
