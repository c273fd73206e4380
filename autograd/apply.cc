#include "sherd/autograd/apply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/region.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/random.h"

namespace sherd {
namespace internal {
namespace {

using Inputs = absl::InlinedVector<const Variable*, 4>;

std::string Describe(const Variable& variable, size_t i) {
  std::string text = absl::StrCat("operand ", i);
  if (variable.ident() && variable.ident()->is_parameter) {
    auto* state = static_cast<ParameterState*>(variable.ident().get());
    absl::StrAppend(&text, " (parameter '", Parameter(Ref<ParameterState>(state)).name(), "')");
  }
  return absl::StrCat(text, ", ", variable.value().ToString());
}

// `reads`: the values themselves will be read now.
void CheckInputs(const Inputs& inputs, const Recorder* recorder, bool reads) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Variable& input = *inputs[i];
    if (!input.defined()) ThrowInvalidArgument(absl::StrCat("operand ", i, " is undefined"));
    if (!(input.value().device() == inputs[0]->value().device())) {
      ThrowInvalidArgument(absl::StrCat("operands are on different devices: ",
                                        Describe(*inputs[0], 0), "; ", Describe(input, i)));
    }
    if (input.ident() && recorder != nullptr) {
      if (input.ident()->is_parameter) {
        auto& state = static_cast<ParameterState&>(*input.ident());
        if (state.host != nullptr) state.host->CheckRead(state.host_index);
      } else if (!recorder->Knows(input.ident()->home)) {
        ThrowFailedPrecondition(
            absl::StrCat(Describe(input, i), " belongs to ", input.ident()->home->description,
                         "; return it from the region, or Detach() it to use it as a constant"));
      }
    }
    if (reads) input.value().raw();  // throws where it is not resident, with the owner's words
  }
}

bool Bit(uint32_t mask, size_t i) { return i < 32 && (mask >> i & 1u) != 0; }

uint64_t NextRandomKey(const Op& op, CallFrame& frame) {
  const uint64_t purpose = HashName(op.name());
  const RandomContext& random = *frame.random;
  const uint64_t path = Mix64(frame.path, frame.random_ops++);
  return Mix64(Mix64(Mix64(random.seed, purpose), static_cast<uint64_t>(random.step)), path);
}

// Says, while it lives, that an op runs: what is read is not read by the program.
class RunningOp {
 public:
  explicit RunningOp(ThreadState& thread) : thread_(thread) { ++thread_.ops; }
  ~RunningOp() { --thread_.ops; }
  RunningOp(const RunningOp&) = delete;
  RunningOp& operator=(const RunningOp&) = delete;

 private:
  ThreadState& thread_;
};

// One application of an op, from its plan to its record.
class Application {
 public:
  Application(const OpValue& value, std::span<const Operand> operands, CallSite site)
      : value_(value),
        op_(value.op),
        site_(site),
        thread_(CurrentThread()),
        recorder_(thread_.recorder),
        frame_(thread_.frame) {
    for (const Operand& operand : operands) inputs_.push_back(operand.variable);
  }

  void Run(Results& results) {
    SHERD_CHECK(!inputs_.empty(), "an op without operands");
    const RunningOp running(thread_);
    Replay* replay = recorder_ != nullptr ? recorder_->replay : nullptr;
    const OpNote* note = replay != nullptr ? &replay->Next(op_.name()) : nullptr;
    const bool computes = note == nullptr || note->replayed == Replayed::kComputed;
    CheckInputs(inputs_, recorder_, computes && (note == nullptr || !note->is_view));
    Plan();
    if (note != nullptr) replay->CheckOutputs(*note, plan_.outputs);
    if (op_.kind() == OpKind::kRandom && frame_ != nullptr && frame_->random != nullptr) {
      random_ = frame_->random;
      random_key_ = NextRandomKey(op_, *frame_);
    }
    if (computes) {
      if (!TakeOfNested()) Compute();
    } else if (note->replayed == Replayed::kKept) {
      KeptValues kept = replay->Take(*note);
      outputs_ = std::move(kept.outputs);
      inner_ = std::move(kept.inner);
    }
    // Skipped, or kept for its inner values alone.
    if (note != nullptr && outputs_.empty()) {
      for (const TensorSpec& spec : plan_.outputs) {
        outputs_.push_back(SkippedValues::Make(replay->skipped(), device(), spec, op_.name()));
      }
    }
    Finish(results);
  }

 private:
  const Device& device() const { return inputs_[0]->value().device(); }
  RegionNotes* notes() const { return recorder_ != nullptr ? recorder_->notes : nullptr; }

  void Plan() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      values_.push_back(inputs_[i]->value());
      if (!inputs_[i]->requires_grad()) continue;
      wants_grad_ = true;
      if (i < 32) plan_.wants_grad |= 1u << i;
    }
    op_.Plan({values_.data(), values_.size()}, plan_);
  }

  void Compute() {
    keeps_ = notes() != nullptr && !plan_.view && KeepsResults();
    for (const TensorSpec& spec : plan_.outputs) {
      outputs_.push_back(plan_.view ? Tensor() : Tensor::Empty(device(), spec.dtype, spec.shape));
    }
    for (const TensorSpec& spec : plan_.inner) {
      inner_.push_back(Tensor::Empty(device(), spec.dtype, spec.shape));
    }
    OpForward forward{{values_.data(), values_.size()},
                      {outputs_.data(), outputs_.size()},
                      {inner_.data(), inner_.size()}};
    if (random_ != nullptr) {
      forward.random_key = random_key_;
      forward.row_samples = random_->samples;
    }
    op_.Forward(forward);
  }

  // See [Note: collectives in nested regions].
  bool TakeOfNested() {
    if (op_.kind() != OpKind::kCollective || notes() == nullptr) return false;
    const Recorder* const around = recorder_->outer;
    if (around == nullptr || around->replay == nullptr) return false;
    KeptValues kept = around->replay->TakeNested(op_.name(), plan_.outputs);
    outputs_ = std::move(kept.outputs);
    inner_ = std::move(kept.inner);
    keeps_ = true;
    return true;
  }

  bool KeepsResults() const {
    if (op_.kind() == OpKind::kCollective) return true;
    if (!notes()->keep_rule) return false;
    OpInfo info{.kind = op_.kind(),
                .name = op_.name(),
                .module = frame_ != nullptr ? frame_->module : nullptr,
                .ordinal = static_cast<int64_t>(notes()->ops.size()),
                .flops = plan_.flops,
                .outputs = plan_.outputs};
    for (const TensorSpec& s : plan_.outputs) info.bytes += s.shape.numel() * SizeOf(s.dtype);
    for (const TensorSpec& s : plan_.inner) info.bytes += s.shape.numel() * SizeOf(s.dtype);
    return notes()->Keeps(info);
  }

  void Finish(Results& results) {
    if (notes() != nullptr) {
      notes()->NoteInputs(inputs_, recorder_->first_birth);
      notes()->NoteOp(op_, plan_, inputs_, {outputs_.data(), outputs_.size()});
      if (keeps_) notes()->Keep({outputs_, inner_});
    }
    const bool records = recorder_ != nullptr && wants_grad_;
    for (const Tensor& output : outputs_) {
      Ref<Ident> ident = records && IsFloating(output.dtype())
                             ? recorder_->tape->NewIdent(recorder_->home)
                             : Ref<Ident>();
      results.emplace_back(output, std::move(ident));
    }
    if (records && notes() == nullptr) Record(results);
  }

  void Record(const Results& results) {
    NodeSizes sizes{.inputs = inputs_.size(), .outputs = results.size(), .specs = inputs_.size()};
    for (size_t i = 0; i < inputs_.size(); ++i) {
      sizes.saved += Bit(plan_.backward_reads_inputs, i) ? 1 : 0;
      sizes.reads += IsParameter(*inputs_[i]) ? 1 : 0;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      sizes.saved += Bit(plan_.backward_reads_outputs, i) ? 1 : 0;
    }
    sizes.saved += inner_.size();
    ++recorder_->tape->ops;
    Node& node = recorder_->tape->AddNode(value_, sizes);
    node.site = site_;
    node.device = device();
    node.module = frame_ != nullptr ? frame_->module : nullptr;
    node.random_key = random_key_;
    node.random = std::move(random_);
    node.reads_inputs = plan_.backward_reads_inputs;
    node.reads_outputs = plan_.backward_reads_outputs;
    size_t saved = 0;
    size_t reads = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Variable& input = *inputs_[i];
      if (input.requires_grad()) node.inputs[i] = input.ident();
      node.input_specs[i] = {input.dtype(), input.shape()};
      if (Bit(plan_.backward_reads_inputs, i)) node.saved[saved++] = input.value();
      if (!IsParameter(input)) continue;
      auto* state = static_cast<ParameterState*>(input.ident().get());
      node.reads[reads++] = {Ref<ParameterState>(state), state->version, state->requires_grad};
    }
    for (size_t i = 0; i < results.size(); ++i) {
      node.outputs[i] = results[i].ident();
      if (Bit(plan_.backward_reads_outputs, i)) node.saved[saved++] = outputs_[i];
    }
    for (const Tensor& inner : inner_) node.saved[saved++] = inner;
  }

  static bool IsParameter(const Variable& v) { return v.ident() && v.ident()->is_parameter; }

  const OpValue& value_;
  const Op& op_;
  const CallSite site_;
  ThreadState& thread_;
  Recorder* const recorder_;
  CallFrame* const frame_;
  Inputs inputs_;
  absl::InlinedVector<Tensor, 4> values_;
  OpPlan plan_;
  Tensors outputs_;
  Tensors inner_;
  std::shared_ptr<const RandomContext> random_;
  uint64_t random_key_ = 0;
  bool wants_grad_ = false;
  bool keeps_ = false;
};

}  // namespace

void ApplyValue(const OpValue& op, std::span<const Operand> inputs, CallSite site,
                Results& results) {
  try {
    Application(op, inputs, site).Run(results);
  } catch (const Error& error) {
    throw error.With(
        {.op = std::string(op.op.name()), .module_path = CurrentModulePath(), .site = site});
  }
}

}  // namespace internal

void RefuseOperands(std::string_view what, std::string_view name_a, const Tensor& a,
                    std::string_view name_b, const Tensor& b) {
  ThrowInvalidArgument(absl::StrCat(std::string(what), ": ", std::string(name_a), " is ",
                                    a.ToString(), ", ", std::string(name_b), " is ", b.ToString()));
}

void RefuseOperand(std::string_view what, std::string_view name, const Tensor& a) {
  ThrowInvalidArgument(
      absl::StrCat(std::string(what), ": ", std::string(name), " is ", a.ToString()));
}

}  // namespace sherd
