#include "sherd/autograd/module.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/call.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/random.h"

namespace sherd {

// Handles to parameters may outlive their module; their names are then short.
Module::~Module() {
  for (const Parameter& parameter : own_parameters_) {
    if (parameter.state().module == this) parameter.state().module = nullptr;
  }
  // A child may outlive its parent, or end before it: members end last to first.
  for (Module* child : children_) child->parent_ = nullptr;
  if (parent_ == nullptr) return;
  std::vector<Module*>& siblings = parent_->children_;
  const auto self = std::find(siblings.rbegin(), siblings.rend(), this);
  if (self != siblings.rend()) siblings.erase(std::next(self).base());
}

std::vector<std::shared_ptr<const Module>> Module::HoldAlive() const {
  std::vector<std::shared_ptr<const Module>> owners;
  for (const Module* m = this; m != nullptr; m = m->parent_) {
    if (std::shared_ptr<const Module> owner = m->weak_from_this().lock()) owners.push_back(owner);
  }
  return owners;
}

std::string Module::path() const {
  if (parent_ == nullptr) return name_;
  const std::string above = parent_->path();
  return above.empty() ? name_ : absl::StrCat(above, ".", name_);
}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> all;
  Collect(all);
  return all;
}

void Module::Collect(std::vector<Parameter>& out) const {
  for (const Parameter& parameter : own_parameters_) {
    if (std::find(out.begin(), out.end(), parameter) == out.end()) out.push_back(parameter);
  }
  for (const Module* child : children_) child->Collect(out);
}

void Module::AddInterceptor(std::shared_ptr<Interceptor> interceptor) {
  interceptors_.insert(interceptors_.begin(), std::move(interceptor));
}

void Module::CheckName(std::string_view name) const {
  auto taken = [&](const auto& item) { return item->name() == name; };
  const bool bad = name.empty() || name.find('.') != std::string_view::npos ||
                   std::any_of(children_.begin(), children_.end(), taken) ||
                   std::any_of(own_parameters_.begin(), own_parameters_.end(), [&](const auto& p) {
                     return p.state().module == this && p.state().leaf_name == name;
                   });
  if (bad) {
    ThrowInvalidArgument(absl::StrCat("'", std::string(name), "' cannot name a part of module '",
                                      path(), "': empty, with a dot, or taken"));
  }
}

Parameter Module::RegisterParameter(std::string_view name, const Shape& shape,
                                    Initializer initializer, DType dtype) {
  CheckName(name);
  Ref<internal::ParameterState> state = MakeRef<internal::ParameterState>();
  state->is_parameter = true;
  state->module = this;
  state->leaf_name = std::string(name);
  state->shape = shape;
  state->dtype = dtype;
  state->initializer = initializer;
  own_parameters_.emplace_back(std::move(state));
  return own_parameters_.back();
}

void Module::RegisterTied(const Parameter& parameter) { own_parameters_.push_back(parameter); }

void Module::RegisterModule(std::string_view name, Module& child) {
  CheckName(name);
  if (child.parent_ != nullptr) {
    ThrowInvalidArgument(absl::StrCat("module '", child.path(), "' has a parent already"));
  }
  child.name_ = std::string(name);
  child.name_hash_ = HashName(name);
  child.parent_ = this;
  children_.push_back(&child);
}

void Initialize(Module& module, const Device& device, uint64_t seed) {
  for (const Parameter& parameter : module.parameters()) {
    internal::ParameterState& state = parameter.state();
    if (!state.local.defined()) {
      state.value =
          Tensor::Empty(device, state.dtype, state.shape, MemoryCategory::kParameterShard);
      state.local = state.value.Reshape({state.shape.numel()});
    }
    const Tensor local = parameter.MutableLocal();
    const Initializer& init = state.initializer;
    const uint64_t key = Mix64(Mix64(seed), HashName(parameter.name()));
    switch (init.kind) {
      case Initializer::Kind::kConstant:
        kernels::Fill(local, init.a);
        break;
      case Initializer::Kind::kNormal:
        kernels::FillNormal(local, key, state.local_offset, init.a, init.b);
        break;
      case Initializer::Kind::kUniform:
        kernels::FillUniform(local, key, state.local_offset, init.a, init.b);
        break;
    }
  }
}

}  // namespace sherd
