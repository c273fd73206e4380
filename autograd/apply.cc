#include "sherd/autograd/apply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/random.h"

namespace sherd {
namespace {

using internal::CurrentThread;
using internal::Ident;
using internal::ParameterState;
using internal::Recorder;

std::string Describe(const Variable& variable, size_t i) {
  std::string text = absl::StrCat("operand ", i);
  if (variable.ident() && variable.ident()->is_parameter) {
    auto* state = static_cast<ParameterState*>(variable.ident().get());
    absl::StrAppend(&text, " (parameter '", Parameter(Ref<ParameterState>(state)).name(), "')");
  }
  return absl::StrCat(text, ", ", variable.value().ToString());
}

void CheckInputs(std::span<const Variable> inputs, const Recorder* recorder) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Variable& input = inputs[i];
    if (!input.defined()) ThrowInvalidArgument(absl::StrCat("operand ", i, " is undefined"));
    if (!(input.value().device() == inputs[0].value().device())) {
      ThrowInvalidArgument(absl::StrCat(
          "operands are on different devices: ", Describe(inputs[0], 0), "; ", Describe(input, i)));
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
    input.value().raw();  // throws where it is not resident, with the owner's words
  }
}

// Notes in a checkpointed first pass what the region reads from outside.
void NoteInputs(internal::RegionNotes& notes, std::span<const Variable> inputs,
                uint64_t first_birth) {
  for (const Variable& input : inputs) {
    if (!input.ident()) continue;
    Ident& ident = *input.ident();
    if (ident.birth > first_birth || !notes.seen.insert(&ident).second) continue;
    if (ident.is_parameter) {
      auto* state = static_cast<ParameterState*>(&ident);
      notes.parameters.push_back({Ref<ParameterState>(state), state->version});
    } else if (ident.requires_grad) {
      notes.outer.emplace_back(&ident);
    }
  }
}

void Save(internal::Node& node, std::span<const Variable> inputs, const OpPlan& plan,
          const OpForward& forward) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Variable& input = inputs[i];
    const bool wants = input.requires_grad();
    node.inputs.push_back(wants ? input.ident() : Ref<Ident>());
    node.input_specs.push_back({input.dtype(), input.shape()});
    const bool read = i < 32 && (plan.backward_reads_inputs >> i & 1u) != 0;
    node.saved_inputs.push_back(read ? input.value() : Tensor());
    if (input.ident() && input.ident()->is_parameter) {
      auto* state = static_cast<ParameterState*>(input.ident().get());
      node.reads.push_back({Ref<ParameterState>(state), state->version});
    }
  }
  for (size_t i = 0; i < forward.outputs.size(); ++i) {
    const bool read = i < 32 && (plan.backward_reads_outputs >> i & 1u) != 0;
    node.saved_outputs.push_back(read ? forward.outputs[i] : Tensor());
  }
  for (const Tensor& inner : forward.inner) node.inner.push_back(inner);
}

uint64_t NextRandomKey(const Op& op, internal::CallFrame& frame) {
  const uint64_t purpose = HashName(op.name());
  const internal::RandomContext& random = *frame.random;
  const uint64_t path = Mix64(frame.path, frame.random_ops++);
  return Mix64(Mix64(Mix64(random.seed, purpose), static_cast<uint64_t>(random.step)), path);
}

std::vector<Variable> ApplyChecked(std::shared_ptr<const Op> op, std::span<const Variable> inputs,
                                   CallSite site) {
  Recorder* recorder = CurrentThread().recorder;
  internal::CallFrame* frame = CurrentThread().frame;
  CheckInputs(inputs, recorder);
  absl::InlinedVector<Tensor, 4> values;
  bool wants_grad = false;
  OpPlan plan;
  for (size_t i = 0; i < inputs.size(); ++i) {
    values.push_back(inputs[i].value());
    if (!inputs[i].requires_grad()) continue;
    wants_grad = true;
    if (i < 32) plan.wants_grad |= 1u << i;
  }
  op->Plan(values, plan);
  SHERD_CHECK(!inputs.empty(), "an op without operands");
  const Device& device = values[0].device();
  absl::InlinedVector<Tensor, 2> outputs;
  absl::InlinedVector<Tensor, 2> inner;
  for (const TensorSpec& spec : plan.outputs) {
    outputs.push_back(plan.view ? Tensor() : Tensor::Empty(device, spec.dtype, spec.shape));
  }
  for (const TensorSpec& spec : plan.inner) {
    inner.push_back(Tensor::Empty(device, spec.dtype, spec.shape));
  }
  OpForward forward{values, std::span<Tensor>(outputs.data(), outputs.size()),
                    std::span<Tensor>(inner.data(), inner.size())};
  const bool random = op->kind() == OpKind::kRandom && frame != nullptr && frame->random != nullptr;
  if (random) {
    forward.random_key = NextRandomKey(*op, *frame);
    forward.row_samples = frame->random->samples;
  }
  op->Forward(forward);

  if (recorder != nullptr && recorder->notes != nullptr) {
    NoteInputs(*recorder->notes, inputs, recorder->first_birth);
  }
  std::vector<Variable> results;
  results.reserve(outputs.size());
  if (recorder == nullptr || !wants_grad) {
    for (Tensor& output : outputs) results.emplace_back(std::move(output));
    return results;
  }
  auto add_result = [&](const Tensor& output) -> const Variable& {
    Ref<Ident> ident =
        IsFloating(output.dtype()) ? recorder->tape->NewIdent(recorder->home) : Ref<Ident>();
    return results.emplace_back(output, std::move(ident));
  };
  if (recorder->notes != nullptr) {
    ++recorder->notes->ops;
    for (const Tensor& output : outputs) add_result(output);
    return results;
  }
  ++recorder->tape->ops;
  internal::Node& node = recorder->tape->AddNode();
  node.op = std::move(op);
  node.site = site;
  node.device = device;
  node.module = frame != nullptr ? frame->module : nullptr;
  if (random) {
    node.random_key = forward.random_key;
    node.random = frame->random;
  }
  Save(node, inputs, plan, forward);
  for (const Tensor& output : outputs) node.outputs.push_back(add_result(output).ident());
  return results;
}

}  // namespace

std::vector<Variable> Apply(std::shared_ptr<const Op> op, std::span<const Variable> inputs,
                            CallSite site) {
  const std::string_view name = op->name();
  try {
    return ApplyChecked(std::move(op), inputs, site);
  } catch (const Error& error) {
    throw error.With(
        {.op = std::string(name), .module_path = internal::CurrentModulePath(), .site = site});
  }
}

Variable ApplyOne(std::shared_ptr<const Op> op, std::initializer_list<Variable> inputs,
                  CallSite site) {
  return Apply(std::move(op), std::span<const Variable>(inputs.begin(), inputs.size()), site)[0];
}

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
