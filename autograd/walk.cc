#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace internal {
namespace {

// Whether nobody else can see this memory, so that it may be added to in place.
bool OwnedAlone(const Tensor& tensor) {
  return tensor.storage().unique() && tensor.is_contiguous();
}

Tensor CopyOf(const Tensor& from) {
  Tensor copy = Tensor::Empty(from.device(), from.dtype(), from.shape());
  kernels::Copy(from, copy, kernels::Write::kOverwrite);
  return copy;
}

}  // namespace

// [Note: gradient buffers are shared until somebody adds]
// The first contribution to a variable may be the very tensor another variable got: the backward of
// x + y hands one gradient to both. Before a later contribution is added in place, the buffer must
// be held by this table alone; else it is copied. The usual residual connection never copies, since
// the branch has taken and dropped its share by the time the trunk is added to.

GradTarget GradTable::Target(Ident& ident, const TensorSpec& spec, const Device& device) {
  if (ident.is_parameter) return TakeParameterGrad(static_cast<ParameterState&>(ident));
  auto [it, inserted] = grads_.try_emplace(&ident, Ref<Ident>(&ident), Tensor());
  Tensor& slot = it->second.second;
  if (inserted) {
    slot = Tensor::Empty(device, spec.dtype, spec.shape);
    return {slot, kernels::Write::kOverwrite};
  }
  if (!OwnedAlone(slot)) slot = CopyOf(slot);
  return {slot, kernels::Write::kAdd};
}

void GradTable::Accumulate(Ident& ident, Tensor gradient) {
  if (!gradient.is_contiguous()) gradient = CopyOf(gradient);
  if (ident.is_parameter) {
    const GradTarget target = TakeParameterGrad(static_cast<ParameterState&>(ident));
    kernels::Copy(gradient, target.tensor, target.write);
    return;
  }
  auto [it, inserted] = grads_.try_emplace(&ident, Ref<Ident>(&ident), Tensor());
  Tensor& slot = it->second.second;
  if (inserted) {
    slot = std::move(gradient);
    return;
  }
  if (!OwnedAlone(slot)) {
    if (OwnedAlone(gradient)) {
      std::swap(slot, gradient);
    } else {
      slot = CopyOf(slot);
    }
  }
  kernels::Copy(gradient, slot, kernels::Write::kAdd);
}

Tensor GradTable::Take(const Ident& ident) {
  auto it = grads_.find(&ident);
  if (it == grads_.end()) return Tensor();
  Tensor gradient = std::move(it->second.second);
  grads_.erase(it);
  return gradient;
}

void GradTable::CommitLeaves() {
  for (auto& [key, entry] : grads_) {
    Ident& leaf = *entry.first;
    if (leaf.birth != 0) continue;
    if (leaf.grad.defined()) {
      Tensor sum = CopyOf(leaf.grad);
      kernels::Copy(entry.second, sum, kernels::Write::kAdd);
      leaf.grad = std::move(sum);
    } else {
      leaf.grad = std::move(entry.second);
    }
  }
  grads_.clear();
}

void Walk::Mark(std::span<const Ref<Ident>> roots) {
  const uint64_t mark = ++tape_.family->marks;
  for (const Ref<Ident>& root : roots) root->mark = mark;
  reached_.assign(tape_.nodes.size(), false);
  for (size_t k = tape_.nodes.size(); k-- > 0;) {
    const Node& node = tape_.nodes[k];
    bool reached = false;
    for (const Ref<Ident>& output : node.outputs) reached |= output && output->mark == mark;
    if (!reached) continue;
    reached_[k] = true;
    for (const Ref<Ident>& input : node.inputs) {
      if (input && !input->is_parameter) input->mark = mark;
    }
  }
  live_.assign(tape_.scopes.size(), false);
  std::vector<int64_t> open;
  size_t marked = 0;  // scopes open[0..marked) are live already
  for (const Entry& entry : tape_.entries) {
    if (entry.kind == EntryKind::kOpen) {
      open.push_back(entry.index);
    } else if (entry.kind == EntryKind::kClose) {
      open.pop_back();
      marked = std::min(marked, open.size());
      continue;
    }
    const bool matters = entry.kind == EntryKind::kOpen
                             ? tape_.scopes[static_cast<size_t>(entry.index)].always_live
                             : reached_[static_cast<size_t>(entry.index)];
    if (!matters) continue;
    for (; marked < open.size(); ++marked) live_[static_cast<size_t>(open[marked])] = true;
  }
}

void Walk::Run(std::span<const Ref<Ident>> roots, std::vector<Tensor> seeds) {
  Mark(roots);
  for (size_t i = 0; i < roots.size(); ++i) table_.Accumulate(*roots[i], std::move(seeds[i]));
  std::vector<ScopeObserver*> entered;
  try {
    for (size_t k = tape_.entries.size(); k-- > 0;) {
      const Entry entry = tape_.entries[k];
      const size_t index = static_cast<size_t>(entry.index);
      if (entry.kind == EntryKind::kNode) {
        if (reached_[index]) RunNode(tape_.nodes[index]);
        tape_.nodes[index] = Node();  // what it saved is given up at once
      } else if (live_[index]) {
        ScopeObserver* observer = tape_.scopes[index].observer;
        if (entry.kind == EntryKind::kClose) {
          observer->BackwardEnter();
          entered.push_back(observer);
        } else {
          entered.pop_back();
          observer->BackwardExit();
        }
      }
    }
  } catch (...) {
    for (size_t k = entered.size(); k-- > 0;) entered[k]->BackwardAbandon();
    throw;
  }
}

void Walk::CheckVersions(const Node& node) const {
  for (const ParameterRead& read : node.reads) {
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
  for (const Ref<Ident>& output : node.outputs) {
    grads.push_back(output ? table_.Take(*output) : Tensor());
    any |= grads.back().defined();
  }
  if (!any) return;
  try {
    CheckVersions(node);
    OpBackward backward(*this, node, std::span<Tensor>(grads.data(), grads.size()));
    node.op->Backward(backward);
  } catch (const Error& error) {
    throw error.With({.op = absl::StrCat("backward of ", std::string(node.op->name())),
                      .module_path = PathOf(node.module),
                      .site = node.site});
  }
}

}  // namespace internal

namespace {
size_t At(int i) { return static_cast<size_t>(i); }
}  // namespace

const Tensor& OpBackward::input(int i) const { return node_.saved_inputs[At(i)]; }
const Tensor& OpBackward::output(int i) const { return node_.saved_outputs[At(i)]; }
const Tensor& OpBackward::inner(int i) const { return node_.inner[At(i)]; }
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
GradTarget OpBackward::target(int i) {
  return walk_.table().Target(*node_.inputs[At(i)], node_.input_specs[At(i)], node_.device);
}
void OpBackward::Pass(int i, Tensor gradient) {
  walk_.table().Accumulate(*node_.inputs[At(i)], std::move(gradient));
}

}  // namespace sherd
