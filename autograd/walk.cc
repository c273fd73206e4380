#include <algorithm>
#include <bit>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace internal {

void Walk::Await(const Node& node, size_t k) {
  for (const ParameterRead& read : node.reads) {
    ParameterState& parameter = *read.parameter;
    if (!read.wanted || parameter.hooks == nullptr) continue;
    if (parameter.hooks->on_accumulated.empty()) continue;
    auto known = std::find_if(awaited_.begin(), awaited_.end(), [&](const Awaited& awaited) {
      return awaited.parameter == read.parameter;
    });
    if (known == awaited_.end()) known = awaited_.insert(known, {read.parameter, k});
    known->node = k;  // nodes come last first
  }
}

void Walk::Mark(std::span<const Ref<Ident>> roots) {
  mark_ = ++tape_.family->marks;
  for (const Ref<Ident>& root : roots) root->mark = mark_;
  const bool outermost = tape_.owner != nullptr;
  for (size_t k = tape_.nodes.size(); k-- > 0;) {
    Node& node = *tape_.nodes[k];
    bool reached = node.always_live;
    for (const Ref<Ident>& output : node.outputs) reached |= output && output->mark == mark_;
    if (!reached) continue;
    if (node.op == nullptr) {
      ThrowFailedPrecondition(
          absl::StrCat("an earlier backward gave up what '", std::string(node.name),
                       "' had saved; pass {.retain = true} to every backward but the last"),
          {.op = "backward", .module_path = PathOf(node.module), .site = node.site});
    }
    node.mark = mark_;
    for (const Ref<Ident>& input : node.inputs) {
      if (input && input->birth != 0) input->mark = mark_;
    }
    if (outermost) Await(node, k);
  }
  if (!tape_.scopes.empty()) MarkScopes();
}

void Walk::MarkScopes() {
  absl::InlinedVector<int64_t, 16> open;
  size_t marked = 0;  // scopes open[0..marked) are live already
  for (const Entry& entry : tape_.entries) {
    if (entry.kind == EntryKind::kOpen) {
      open.push_back(entry.index);
    } else if (entry.kind == EntryKind::kClose) {
      open.pop_back();
      marked = std::min(marked, open.size());
      continue;
    }
    const auto index = static_cast<size_t>(entry.index);
    const bool matters = entry.kind == EntryKind::kOpen ? tape_.scopes[index].always_live
                                                        : tape_.nodes[index]->mark == mark_;
    if (!matters) continue;
    for (; marked < open.size(); ++marked) {
      tape_.scopes[static_cast<size_t>(open[marked])].mark = mark_;
    }
  }
}

double Walk::SeedFactor(bool& any) const {
  double factor = 1.0;
  const Module* from = nullptr;
  const auto ask = [&](ScopeObserver& observer, const Module* module) {
    const std::optional<double> said = observer.SeedFactor();
    if (!said.has_value()) return;
    if (any && factor != *said) {
      ThrowFailedPrecondition(
          absl::StrCat("the calls of one backward would scale its seeds differently: ",
                       PathOf(from), " by ", factor, ", ", PathOf(module), " by ", *said),
          {.op = "backward"});
    }
    any = true;
    factor = *said;
    from = module;
  };
  for (const Scope& scope : tape_.scopes) {
    if (scope.mark == mark_) ask(*scope.observer, scope.module);
  }
  for (const ObservedRegion& region : tape_.regions) {
    if (region.node->mark != mark_) continue;
    for (ScopeObserver* observer : region.observers) ask(*observer, region.node->module);
  }
  return factor;
}

void Walk::Run(std::span<const Ref<Ident>> roots, std::span<const Tensor> seeds) {
  Mark(roots);
  // Recomputes, and backwards that hooks run, get gradients that are scaled already.
  bool& scaled = CurrentThread().scaled;
  const double factor = tape_.owner != nullptr && !scaled ? SeedFactor(scaled) : 1.0;
  for (size_t i = 0; i < roots.size(); ++i) {
    Tensor seed = seeds[i];
    if (factor != 1.0) {
      seed = Tensor::Empty(seed.device(), seed.dtype(), seed.shape());
      kernels::Scale(seeds[i], factor, seed);
    }
    table_.Accumulate(*roots[i], std::move(seed));
  }
  absl::InlinedVector<ScopeObserver*, 16> entered;
  try {
    for (size_t k = tape_.entries.size(); k-- > 0;) {
      const Entry entry = tape_.entries[k];
      const size_t index = static_cast<size_t>(entry.index);
      if (entry.kind == EntryKind::kNode) {
        Node& node = *tape_.nodes[index];
        if (node.mark != mark_) continue;
        RunNode(node);
        if (!retain_) {
          node.always_live = false;
          node.Consume();  // what it saved is given up at once
        }
        if (!awaited_.empty()) RunParameterHooks(index);
        continue;
      }
      Scope& scope = tape_.scopes[index];
      if (scope.mark != mark_) continue;
      if (entry.kind == EntryKind::kClose) {
        scope.observer->BackwardEnter();
        entered.push_back(scope.observer);
      } else {
        entered.pop_back();
        if (!retain_) scope.always_live = false;
        scope.observer->BackwardExit();
        table_.NoteScope(scope.observer);
        if (!awaited_.empty()) RunParameterHooks(tape_.nodes.size());
      }
    }
    RunParameterHooks(tape_.nodes.size());
  } catch (...) {
    for (size_t k = entered.size(); k-- > 0;) entered[k]->BackwardAbandon();
    throw;
  }
}

// Runs the hooks of parameters that have their whole gradient: those `node` was the last to
// contribute to, and earlier ones whose unit had a scope open until now.
void Walk::RunParameterHooks(size_t node) {
  for (size_t k = 0; k < awaited_.size();) {
    Awaited& awaited = awaited_[k];
    if (awaited.node == node) awaited.node = tape_.nodes.size();
    const ParameterHost* host = awaited.parameter->host;
    const bool whole = awaited.node == tape_.nodes.size() &&
                       (host == nullptr || !host->InBackward(awaited.parameter->host_index));
    if (!whole) {
      ++k;
      continue;
    }
    const Ref<ParameterState> parameter = awaited.parameter;
    awaited_.erase(awaited_.begin() + static_cast<std::ptrdiff_t>(k));
    try {
      RunHooks(*parameter);
    } catch (const Error& error) {
      throw error.With({.module_path = PathOf(parameter->module)});
    }
  }
}

void Walk::CheckVersions(const Node& node) const {
  for (const ParameterRead& read : node.reads) {
    // An op has recorded whose gradients it computes; a region would find out anew.
    if (read.parameter->requires_grad != read.wanted && node.op->kind() == OpKind::kRegion) {
      ThrowFailedPrecondition(absl::StrCat(
          "parameter '", Parameter(read.parameter).name(), "' was ",
          read.wanted ? "frozen" : "unfrozen",
          " between forward and backward, and the call that read it is to be computed again; "
          "change requires_grad after the last backward"));
    }
    if (read.parameter->version == read.version) continue;
    ThrowFailedPrecondition(absl::StrCat("parameter '", Parameter(read.parameter).name(),
                                         "' changed between forward and backward (version ",
                                         read.version, ", now ", read.parameter->version,
                                         "); step the optimizer after the last backward"));
  }
}

void Walk::RunNode(Node& node) {
  absl::InlinedVector<Tensor, 2> grads;
  bool any = false;
  try {
    for (const Ref<Ident>& output : node.outputs) {
      Tensor grad = output ? table_.Take(*output) : Tensor();
      if (grad.defined() && output->hooks != nullptr) grad = RunHooks(*output, std::move(grad));
      any |= grad.defined();
      grads.push_back(std::move(grad));
    }
    if (!any && !node.always_live) return;
    CheckVersions(node);
    OpBackward backward(*this, node, std::span<Tensor>(grads.data(), grads.size()));
    node.op->Backward(backward);
    backward.Settle(nullptr);
  } catch (const Error& error) {
    throw error.With({.op = absl::StrCat("backward of ", std::string(node.name)),
                      .module_path = PathOf(node.module),
                      .site = node.site});
  }
}

}  // namespace internal

namespace {

size_t At(int i) { return static_cast<size_t>(i); }

// How many of the first i bits are set: the place of the i-th saved value.
size_t Place(uint32_t mask, int i) {
  return static_cast<size_t>(std::popcount(mask & ((1u << i) - 1u)));
}

}  // namespace

const Tensor& OpBackward::Saved(size_t place, const char* what) const {
  SHERD_CHECK(place < node_.saved.size(), what);
  return node_.saved[place];
}

const Tensor& OpBackward::input(int i) const {
  SHERD_CHECK(i < 32 && (node_.reads_inputs >> i & 1u) != 0, "backward read an undeclared input");
  return Saved(Place(node_.reads_inputs, i), "an input was not saved");
}
const Tensor& OpBackward::output(int i) const {
  SHERD_CHECK(i < 32 && (node_.reads_outputs >> i & 1u) != 0, "backward read an undeclared output");
  const auto inputs = static_cast<size_t>(std::popcount(node_.reads_inputs));
  return Saved(inputs + Place(node_.reads_outputs, i), "an output was not saved");
}
const Tensor& OpBackward::inner(int i) const {
  const int before = std::popcount(node_.reads_inputs) + std::popcount(node_.reads_outputs);
  return Saved(At(before + i), "an inner value was not saved");
}
const TensorSpec& OpBackward::input_spec(int i) const { return node_.input_specs[At(i)]; }
const Tensor& OpBackward::grad(int i) const { return grads_[At(i)]; }
Tensor OpBackward::TakeGrad(int i) { return std::move(grads_[At(i)]); }
uint64_t OpBackward::random_key() const { return node_.random_key; }
std::span<const int64_t> OpBackward::row_samples() const {
  if (node_.random == nullptr) return {};
  return node_.random->samples;
}
bool OpBackward::needs(int i) const { return static_cast<bool>(node_.inputs[At(i)]); }
bool OpBackward::same(int i, int j) const {
  return needs(i) && node_.inputs[At(i)] == node_.inputs[At(j)];
}
bool OpBackward::retain() const { return walk_.retain(); }
GradTarget OpBackward::target(int i, GradDType accepts) {
  const TensorSpec& spec = node_.input_specs[At(i)];
  internal::Ident& ident = *node_.inputs[At(i)];
  Settle(&ident);
  GradTarget kept = walk_.table().Target(ident, spec.dtype, spec.shape, node_.device);
  const DType widest = accepts == GradDType::kOfInput ? spec.dtype : ComputeDTypeOf(spec.dtype);
  const DType given = kept.tensor.dtype();
  if (given == spec.dtype || given == widest || accepts == GradDType::kAnyFloat) return kept;
  const Tensor written =
      Tensor::Empty(node_.device, widest, spec.shape, MemoryCategory::kWorkspace);
  staged_.push_back({&ident, written, std::move(kept)});
  return {written, kernels::Write::kOverwrite};
}
void OpBackward::Settle(const internal::Ident* ident) {
  for (size_t k = 0; k < staged_.size();) {
    if (ident != nullptr && staged_[k].ident != ident) {
      ++k;
      continue;
    }
    const Staged staged = std::move(staged_[k]);
    staged_.erase(staged_.begin() + static_cast<std::ptrdiff_t>(k));
    kernels::Cast(staged.written, staged.kept.tensor, staged.kept.write);
  }
}
void OpBackward::Pass(int i, Tensor gradient) {
  Settle(node_.inputs[At(i)].get());
  walk_.table().Accumulate(*node_.inputs[At(i)], std::move(gradient));
}

}  // namespace sherd
