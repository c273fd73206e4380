#include "sherd/checkpoint/checkpoint.h"

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

// The node a checkpointed call leaves on the tape. Its backward records the call on a tape of its
// own and walks that at once; gradients of outer variables go to the table both walks share.
class CheckpointOp final : public Op {
 public:
  CheckpointOp(CallContext call, CallFrame frame)
      : call_(std::move(call)), frame_(std::move(frame)) {}

  std::string_view name() const override { return "checkpoint"; }
  OpKind kind() const override { return OpKind::kRegion; }
  void Plan(std::span<const Tensor>, OpPlan&) const override {
    SHERD_CHECK(false, "a checkpoint is not applied as an op");
  }
  void Forward(OpForward&) const override {
    SHERD_CHECK(false, "a checkpoint is not applied as an op");
  }
  void Backward(OpBackward& b) const override;

  void SetFirstRun(const std::vector<Variable>& outputs, int64_t ops) {
    for (const Variable& output : outputs) outputs_.push_back({output.dtype(), output.shape()});
    ops_ = ops;
  }

 private:
  void CheckSame(const std::vector<Variable>& outputs, int64_t ops) const;

  CallContext call_;
  CallFrame frame_;
  std::vector<TensorSpec> outputs_;
  int64_t ops_ = 0;
};

void CheckpointOp::CheckSame(const std::vector<Variable>& outputs, int64_t ops) const {
  if (outputs.size() != outputs_.size() || ops != ops_) {
    ThrowFailedPrecondition(absl::StrCat("recompute differs: the first run recorded ", ops_,
                                         " ops and ", outputs_.size(), " outputs, this one ", ops,
                                         " and ", outputs.size()));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].dtype() == outputs_[k].dtype && outputs[k].shape() == outputs_[k].shape)
      continue;
    ThrowFailedPrecondition(absl::StrCat(
        "recompute differs: output ", k, " was ", std::string(NameOf(outputs_[k].dtype)), " ",
        outputs_[k].shape.ToString(), ", now ", outputs[k].value().ToString()));
  }
}

void CheckpointOp::Backward(OpBackward& b) const {
  Walk& walk = b.walk();
  TapeImpl tape(walk.tape().family);
  Recorder recorder;
  recorder.outer = &walk.level();
  recorder.tape = &tape;
  recorder.home = tape.home;
  recorder.first_birth = tape.family->births;
  recorder.recompute = true;
  std::vector<Variable> outputs;
  {
    const RecorderGuard on(&recorder);
    const FrameGuard frame(frame_);
    const ResultDropper drop{call_.record()};
    call_.Proceed();
    outputs = BornAt(call_.record(), tape.home);
  }
  CheckSame(outputs, tape.ops);
  std::vector<Ref<Ident>> roots;
  std::vector<Tensor> seeds;
  for (size_t k = 0; k < outputs.size(); ++k) {
    Tensor seed = b.TakeGrad(static_cast<int>(k));
    if (!seed.defined()) continue;
    roots.push_back(outputs[k].ident());
    seeds.push_back(std::move(seed));
  }
  outputs.clear();
  Walk(tape, walk.table(), recorder).Run(roots, std::move(seeds));
}

class CheckpointInterceptor final : public Interceptor {
 public:
  void Around(const CallContext& call) override { RunCheckpointed(call); }
};

}  // namespace

void RunCheckpointed(const CallContext& call) {
  ThreadState& thread = CurrentThread();
  Recorder* outer = thread.recorder;
  // Inside another region's first pass this one is a part of that region.
  if (outer == nullptr || outer->notes != nullptr) {
    call.Proceed();
    return;
  }
  auto op = std::make_shared<CheckpointOp>(call, *thread.frame);
  RegionNotes notes;
  Recorder region;
  region.outer = outer;
  region.tape = outer->tape;
  region.notes = &notes;
  region.home = MakeRef<Home>(absl::StrCat("a checkpointed region in ", CurrentModulePath()));
  region.first_birth = outer->tape->family->births;
  region.recompute = outer->recompute;
  {
    const RecorderGuard on(&region);
    call.Proceed();
  }
  outer->tape->ops += notes.ops;
  const std::vector<Variable> born = BornAt(call.record(), region.home);
  if (born.empty()) return;
  op->SetFirstRun(born, notes.ops);

  Node& node = outer->tape->AddNode();
  node.op = std::move(op);
  node.device = born[0].value().device();
  node.module = call.module() != nullptr ? call.module() : thread.frame->module;
  for (Ref<Ident>& ident : notes.outer) node.inputs.push_back(std::move(ident));
  for (ParameterRead& read : notes.parameters) node.reads.push_back(std::move(read));
  std::vector<Ref<Ident>> fresh;
  for (size_t k = 0; k < born.size(); ++k) {
    fresh.push_back(outer->tape->NewIdent(outer->home));
    node.outputs.push_back(fresh.back());
  }
  call.record().VisitResult([&](Variable& variable) {
    for (size_t k = 0; k < born.size(); ++k) {
      if (variable.ident() == born[k].ident()) {
        variable = Variable(variable.value(), fresh[k]);
        return;
      }
    }
  });
}

void AddCheckpoint(Module& module) {
  module.AddInterceptor(std::make_shared<CheckpointInterceptor>());
}

}  // namespace internal
}  // namespace sherd
