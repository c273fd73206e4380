#include "sherd/shard/fully_shard.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/internal/sharded_module.h"

namespace sherd {
namespace internal {
namespace {

bool IsBelow(const Module& module, std::span<Module* const> ancestors) {
  for (const Module* m = &module; m != nullptr; m = m->parent()) {
    if (std::find(ancestors.begin(), ancestors.end(), m) != ancestors.end()) return true;
  }
  return false;
}

// Whether a module of the tree below `root` that is not below `modules` has the parameter too.
bool IsTiedOutside(const Parameter& parameter, const Module& root,
                   std::span<Module* const> modules) {
  if (std::find(modules.begin(), modules.end(), &root) != modules.end()) return false;
  const std::vector<Parameter>& own = root.own_parameters();
  if (std::find(own.begin(), own.end(), parameter) != own.end()) return true;
  const std::vector<Module*>& children = root.children();
  return std::any_of(children.begin(), children.end(), [&](const Module* child) {
    return IsTiedOutside(parameter, *child, modules);
  });
}

const Module& RootOf(const Module& module) {
  const Module* root = &module;
  while (root->parent() != nullptr) root = root->parent();
  return *root;
}

void CheckModules(std::span<Module* const> modules, const ErrorContext& what) {
  if (modules.empty()) ThrowInvalidArgument("an empty list of modules was given", what);
  for (size_t k = 0; k < modules.size(); ++k) {
    if (modules[k] == nullptr) ThrowInvalidArgument("a null module was given", what);
    if (ShardedOf(*modules[k]) != nullptr) {
      ThrowInvalidArgument(modules.size() == 1 ? "the module is a unit already"
                                               : absl::StrCat("module '", PathOf(modules[k]),
                                                              "' is in a unit already"),
                           what);
    }
    for (size_t j = 0; j < modules.size(); ++j) {
      if (j == k || !IsBelow(*modules[k], modules.subspan(j, 1))) continue;
      ThrowInvalidArgument(absl::StrCat("module '", PathOf(modules[k]), "' is given beside '",
                                        PathOf(modules[j]), "', which has it already"),
                           what);
    }
  }
}

void CheckOptions(const FullyShardOptions& options, const ErrorContext& what) {
  if (options.prefetch < 0) {
    ThrowInvalidArgument(absl::StrCat("prefetch is ", options.prefetch, "; it is 0 or more"), what);
  }
  const MixedPrecision& precision = options.precision;
  for (const auto& [dtype, name] :
       {std::pair(precision.parameters, "parameters"), std::pair(precision.reduce, "reduce"),
        std::pair(precision.output, "output")}) {
    if (!dtype.has_value() || IsFloating(*dtype)) continue;
    ThrowInvalidArgument(absl::StrCat("precision.", name, " is ", std::string(NameOf(*dtype)),
                                      ", which is no floating dtype"),
                         what);
  }
}

// Whether the unit that is being made takes the parameter. Errors: kInvalidArgument if it cannot.
bool Claims(const Parameter& parameter, std::span<Module* const> modules, const Device& device,
            const FullyShardOptions& options, const ErrorContext& what) {
  const ParameterState& state = parameter.state();
  const auto& ignored = options.ignored;
  if (std::find(ignored.begin(), ignored.end(), parameter) != ignored.end()) return false;
  if (parameter.numel() == 0) {
    ThrowInvalidArgument(absl::StrCat("parameter '", parameter.name(), "' has no elements"), what);
  }
  if (state.local.defined() && !(state.local.device() == device)) {
    ThrowInvalidArgument(absl::StrCat("parameter '", parameter.name(), "' is on ",
                                      state.local.device().id().ToString(),
                                      ", the mesh computes on ", device.id().ToString()),
                         what);
  }
  if (state.host == nullptr) return !IsTiedOutside(parameter, RootOf(*modules[0]), modules);
  const auto* host = dynamic_cast<const ShardedModule*>(state.host);
  if (host == nullptr || !IsBelow(*host->modules()[0], modules)) {
    ThrowInvalidArgument(
        absl::StrCat("parameter '", parameter.name(), "' is shared with ",
                     host == nullptr ? "another host" : PathOf(host->modules()[0]),
                     ", which owns it already; shard their common ancestor instead of either"),
        what);
  }
  return false;
}

}  // namespace

void FullyShardModules(std::vector<Module*> modules, const Mesh& mesh,
                       const FullyShardOptions& options) {
  ErrorContext what{.op = "FullyShard"};
  if (!modules.empty() && modules[0] != nullptr) what.module_path = PathOf(modules[0]);
  CheckModules(modules, what);
  CheckOptions(options, what);
  std::shared_ptr<ShardContext> context = ShardContext::Of(mesh);
  std::vector<Parameter> mine;
  std::vector<ShardedModule*> inner;
  for (const Module* module : modules) {
    for (const Parameter& parameter : module->parameters()) {
      if (std::find(mine.begin(), mine.end(), parameter) != mine.end()) continue;
      if (Claims(parameter, modules, context->device(), options, what)) mine.push_back(parameter);
    }
    for (ShardedModule* sharded : CollectSharded(*module)) inner.push_back(sharded);
  }
  auto sharded =
      std::make_shared<ShardedModule>(modules, std::move(mine), std::move(context), options);
  for (ShardedModule* child : inner) {
    if (child->parent() == nullptr) child->set_parent(sharded.get());
  }
  for (Module* module : modules) module->AddInterceptor(sharded);
}

}  // namespace internal

void StartUnshard(Module& module) {
  internal::ShardedModule& sharded = internal::ShardedOrThrow(module, "StartUnshard");
  sharded.CheckUsable();
  sharded.unit().Announce(UnitCall::Kind::kPrefetch);
  sharded.unit().Prefetch();
}

void Reshard(Module& module) {
  Unit& unit = internal::ShardedOrThrow(module, "Reshard").unit();
  unit.Announce(UnitCall::Kind::kReshard);
  unit.Reshard();
}

void Participate(Module& module) {
  internal::ShardedModule& sharded = internal::ShardedOrThrow(module, "Participate");
  sharded.CheckUsable();
  sharded.Enter();
  { const ScopeGuard scope(sharded, &module, /*always_live=*/true); }
  sharded.Exit();
}

void SetGradientSync(Module& module, GradientSync sync) {
  for (internal::ShardedModule* sharded : internal::CollectSharded(module)) {
    sharded->unit().SetSync(sync);
  }
}

void FinishGradients(Module& module) {
  for (internal::ShardedModule* sharded : internal::CollectSharded(module)) {
    sharded->unit().FinishGradients();
  }
}

void SetReshardAfterForward(Module& module, bool reshard) {
  for (internal::ShardedModule* sharded : internal::CollectSharded(module)) {
    sharded->options().reshard_after_forward = reshard;
  }
}

void SetReshardAfterBackward(Module& module, bool reshard) {
  for (internal::ShardedModule* sharded : internal::CollectSharded(module)) {
    sharded->options().reshard_after_backward = reshard;
  }
}

namespace {

void SetPrefetchList(Module& module, bool backward, const std::vector<Module*>& next,
                     const char* op) {
  internal::ShardedModule& sharded = internal::ShardedOrThrow(module, op);
  std::vector<Unit*> units;
  for (const Module* other : next) units.push_back(&internal::ShardedOrThrow(*other, op).unit());
  sharded.unit().SetPrefetchList(backward, std::move(units));
}

}  // namespace

void SetForwardPrefetch(Module& module, const std::vector<Module*>& next) {
  SetPrefetchList(module, /*backward=*/false, next, "SetForwardPrefetch");
}

void SetBackwardPrefetch(Module& module, const std::vector<Module*>& next) {
  SetPrefetchList(module, /*backward=*/true, next, "SetBackwardPrefetch");
}

Unit* UnitOf(const Module& module) {
  internal::ShardedModule* sharded = internal::ShardedOf(module);
  return sharded != nullptr ? &sharded->unit() : nullptr;
}

Unit* UnitOf(const Parameter& parameter) {
  auto* host = dynamic_cast<internal::ShardedModule*>(parameter.state().host);
  return host != nullptr ? &host->unit() : nullptr;
}

std::vector<Unit*> UnitsOf(const Module& module) {
  std::vector<Unit*> units;
  for (internal::ShardedModule* s : internal::CollectSharded(module)) units.push_back(&s->unit());
  return units;
}

std::shared_ptr<ShardContext> ContextOf(const Module& module) {
  const std::vector<internal::ShardedModule*> sharded = internal::CollectSharded(module);
  return sharded.empty() ? nullptr : sharded.front()->context();
}

bool IsIgnored(const Module& module, const Parameter& parameter) {
  const std::vector<internal::ShardedModule*> all = internal::CollectSharded(module);
  return std::any_of(all.begin(), all.end(), [&](internal::ShardedModule* sharded) {
    const std::vector<Parameter>& ignored = sharded->options().ignored;
    return std::find(ignored.begin(), ignored.end(), parameter) != ignored.end();
  });
}

struct UnitScope::State {
  internal::ShardedModule* sharded;
  std::unique_ptr<ScopeGuard> scope;
  const int exceptions = std::uncaught_exceptions();
};

UnitScope::UnitScope(Module& module) : state_(std::make_unique<State>()) {
  state_->sharded = &internal::ShardedOrThrow(module, "UnitScope");
  state_->sharded->CheckUsable();
  state_->sharded->Enter();
  state_->scope = std::make_unique<ScopeGuard>(*state_->sharded, &module);
}

UnitScope::~UnitScope() {
  state_->scope.reset();
  if (std::uncaught_exceptions() == state_->exceptions) {
    state_->sharded->Exit();
  } else {
    state_->sharded->Unwind("an exception left the UnitScope of '" +
                            state_->sharded->unit().name() + "'");
  }
}

void Recover(Module& model) {
  for (ShardContext* context : internal::ContextsOf({&model})) context->Recover();
  for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
}

}  // namespace sherd
