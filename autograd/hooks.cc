#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace internal {
namespace {

// Runs `body`; what it throws that is no Error becomes one with the same text.
template <typename Body>
auto Guarded(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw error.With({.op = "gradient hook"});
  } catch (const std::exception& error) {
    ThrowError(Error(absl::StatusCode::kUnknown, error.what(), {.op = "gradient hook"}));
  }
}

// By value: a hook may add hooks, or clear them.
void RunAll(std::vector<std::function<void(const Parameter&)>> hooks, const Parameter& parameter) {
  for (const auto& hook : hooks) {
    Guarded([&] {
      hook(parameter);
      return 0;
    });
  }
}

}  // namespace

Tensor RunHooks(const Ident& ident, Tensor gradient) {
  if (ident.hooks == nullptr) return gradient;
  // A copy: a hook may add hooks.
  const auto hooks = ident.hooks->on_gradient;
  for (const auto& hook : hooks) {
    Tensor result = Guarded([&] { return hook(gradient); });
    if (!result.defined() || !(result.shape() == gradient.shape()) ||
        result.dtype() != gradient.dtype() || !(result.device() == gradient.device())) {
      ThrowInvalidArgument(
          absl::StrCat("a hook returned ", result.ToString(), " for ", gradient.ToString()),
          {.op = "gradient hook"});
    }
    gradient = std::move(result);
  }
  return gradient;
}

void RunHooks(ParameterState& parameter) {
  RunAll(parameter.hooks->on_accumulated, Parameter(Ref<ParameterState>(&parameter)));
}

bool HasWindowHooks(const Parameter& parameter) {
  const std::unique_ptr<Hooks>& hooks = parameter.state().hooks;
  return hooks != nullptr && !hooks->on_window.empty();
}

void RunWindowHooks(const Parameter& parameter) {
  if (!HasWindowHooks(parameter)) return;
  try {
    RunAll(parameter.state().hooks->on_window, parameter);
  } catch (const Error& error) {
    throw error.With({.module_path = PathOf(parameter.state().module)});
  }
}

Ident::Ident() = default;
Ident::~Ident() = default;

}  // namespace internal

void Variable::OnGradient(std::function<Tensor(const Tensor&)> hook) const {
  if (!requires_grad()) {
    ThrowFailedPrecondition("a constant has no gradient to wait for", {.op = "gradient hook"});
  }
  if (ident_->is_parameter) {
    ThrowInvalidArgument(
        "a parameter's gradient is not one tensor of a backward: use "
        "Parameter::OnGradient",
        {.op = "gradient hook"});
  }
  if (ident_->hooks == nullptr) ident_->hooks = std::make_unique<internal::Hooks>();
  ident_->hooks->on_gradient.push_back(std::move(hook));
}

void Parameter::OnGradient(std::function<void(const Parameter&)> hook) const {
  if (state_->hooks == nullptr) state_->hooks = std::make_unique<internal::Hooks>();
  state_->hooks->on_accumulated.push_back(std::move(hook));
}

void Parameter::OnWindowGradient(std::function<void(const Parameter&)> hook) const {
  if (state_->hooks == nullptr) state_->hooks = std::make_unique<internal::Hooks>();
  state_->hooks->on_window.push_back(std::move(hook));
}

void Parameter::ClearHooks() const { state_->hooks = nullptr; }

}  // namespace sherd
