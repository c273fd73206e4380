#include "sherd/autograd/parameter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/module.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

std::string Parameter::name() const {
  const std::string path = state_->module != nullptr ? state_->module->path() : "";
  return path.empty() ? state_->leaf_name : absl::StrCat(path, ".", state_->leaf_name);
}

void Parameter::set_requires_grad(bool requires_grad) const {
  const bool before = std::exchange(state_->requires_grad, requires_grad);
  if (before == requires_grad || state_->host == nullptr) return;
  try {
    state_->host->RequiresGradChanged(state_->host_index);
  } catch (...) {
    state_->requires_grad = before;
    throw;
  }
}

Variable Parameter::variable() const {
  if (!state_->value.defined()) {
    ThrowFailedPrecondition(
        absl::StrCat("parameter '", name(), "' was read before it was initialised or loaded"));
  }
  return Variable(state_->value, Ref<internal::Ident>(state_.get()));
}

Tensor Parameter::MutableLocal() const {
  if (!state_->local.defined()) {
    ThrowFailedPrecondition(
        absl::StrCat("parameter '", name(), "' was written before it was initialised"));
  }
  if (state_->host != nullptr) state_->host->AwaitReaders(state_->host_index);
  ++state_->version;
  return state_->local;
}

Tensor Parameter::local_grad() const {
  if (state_->host != nullptr) return state_->host->LocalGrad(state_->host_index);
  if (!state_->has_grad) return Tensor();
  return state_->grad.Reshape({state_->grad.numel()});
}

void Parameter::ClearGrad() const {
  if (state_->host != nullptr) {
    state_->host->ClearGrad(state_->host_index);
  } else {
    state_->has_grad = false;
  }
}

namespace internal {

GradTarget TakeParameterGrad(ParameterState& parameter) {
  if (parameter.host != nullptr) return parameter.host->TakeGradTarget(parameter.host_index);
  if (!parameter.grad.defined()) {
    parameter.grad = Tensor::Empty(parameter.value.device(), parameter.dtype, parameter.shape,
                                   MemoryCategory::kGradient);
  }
  const bool add = std::exchange(parameter.has_grad, true);
  return {parameter.grad, add ? kernels::Write::kAdd : kernels::Write::kOverwrite};
}

}  // namespace internal
}  // namespace sherd
