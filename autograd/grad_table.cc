#include "sherd/autograd/internal/grad_table.h"

#include <algorithm>
#include <utility>

#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd::internal {
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

GradTable::Slot* GradTable::Find(const Ident& ident) {
  return ident.table == this ? &slots_[ident.slot] : nullptr;
}

GradTable::Slot& GradTable::Add(Ident& ident) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  if (ident.table == nullptr) {
    ident.table = this;
    ident.slot = index;
  }
  slots_[index].ident = Ref<Ident>(&ident);
  return slots_[index];
}

void GradTable::Release(Slot& slot) {
  Ident& ident = *slot.ident;
  if (ident.table == this) ident.table = nullptr;
  free_.push_back(static_cast<uint32_t>(&slot - slots_.data()));
  slot.ident = Ref<Ident>();
  slot.grad = Tensor();
}

GradTarget GradTable::Target(Ident& ident, DType dtype, const Shape& shape, const Device& device) {
  if (ident.is_parameter) return TakeParameterGrad(static_cast<ParameterState&>(ident));
  Slot* slot = Find(ident);
  if (slot == nullptr) {
    slot = &Add(ident);
    slot->grad = Tensor::Empty(device, dtype, shape);
    return {slot->grad, kernels::Write::kOverwrite};
  }
  if (!OwnedAlone(slot->grad)) slot->grad = CopyOf(slot->grad);
  return {slot->grad, kernels::Write::kAdd};
}

void GradTable::Accumulate(Ident& ident, Tensor gradient) {
  if (ident.is_parameter) {
    const GradTarget target = TakeParameterGrad(static_cast<ParameterState&>(ident));
    kernels::Cast(gradient, target.tensor, target.write);
    return;
  }
  if (!gradient.is_contiguous()) gradient = CopyOf(gradient);
  Slot* slot = Find(ident);
  if (slot == nullptr) {
    Add(ident).grad = std::move(gradient);
    return;
  }
  if (!OwnedAlone(slot->grad)) {
    if (OwnedAlone(gradient)) {
      std::swap(slot->grad, gradient);
    } else {
      slot->grad = CopyOf(slot->grad);
    }
  }
  kernels::Copy(gradient, slot->grad, kernels::Write::kAdd);
}

Tensor GradTable::Take(Ident& ident) {
  Slot* slot = Find(ident);
  if (slot == nullptr) return Tensor();
  Tensor gradient = std::move(slot->grad);
  Release(*slot);
  return gradient;
}

void GradTable::CommitLeaves() {
  // All hooks first: when one fails, no leaf has got anything.
  for (size_t k = 0; k < slots_.size(); ++k) {
    const Ref<Ident> leaf = slots_[k].ident;
    if (!leaf || leaf->birth != 0 || leaf->hooks == nullptr) continue;
    Tensor gradient = RunHooks(*leaf, std::move(slots_[k].grad));
    slots_[k].grad = std::move(gradient);
  }
  for (Slot& slot : slots_) {
    if (!slot.ident || slot.ident->birth != 0) continue;
    Tensor& sum = slot.ident->grad;
    if (sum.defined()) {
      Tensor more = CopyOf(sum);  // who holds the old one keeps it as it is
      kernels::Copy(slot.grad, more, kernels::Write::kAdd);
      sum = std::move(more);
    } else {
      // Not a seed's memory, nor another leaf's.
      sum = OwnedAlone(slot.grad) ? std::move(slot.grad) : CopyOf(slot.grad);
    }
  }
  Clear();
}

void GradTable::NoteScope(ScopeObserver* observer) {
  if (std::find(observers_.rbegin(), observers_.rend(), observer) == observers_.rend()) {
    observers_.push_back(observer);
  }
}

void GradTable::EndScopes() {
  for (ScopeObserver* observer : observers_) observer->BackwardEnded();
  observers_.clear();
}

void GradTable::Clear() {
  observers_.clear();
  for (Slot& slot : slots_) {
    if (slot.ident) Release(slot);
  }
}

}  // namespace sherd::internal
