#include "sherd/shard/fully_shard.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace internal {

// What FullyShard puts on a module: translates scopes of calls into the calls of a unit, and
// gradients of parameters into its buffers.
class ShardedModule final : public Interceptor,
                            public ParameterHost,
                            public ScopeObserver,
                            public GatheringScope {
 public:
  ShardedModule(Module& module, std::vector<Parameter> parameters,
                std::shared_ptr<ShardContext> context, FullyShardOptions options);
  ~ShardedModule() override;

  Unit& unit() { return *unit_; }
  const Module& module() const { return module_; }
  const std::shared_ptr<ShardContext>& context() const { return context_; }
  void set_parent(ShardedModule* parent) { parent_ = parent; }
  ShardedModule* parent() const { return parent_; }

  void Around(const CallContext& call) override;
  void Enter() { unit_->EnterForward(Version()); }
  void Exit();

  void CheckRead(int index) const override;
  GradTarget TakeGradTarget(int index) override;
  Tensor LocalGrad(int index) const override { return unit_->LocalGradient(index); }
  void ClearGrad(int index) override { unit_->ClearGradient(index); }
  void AwaitReaders(int) override { unit_->AwaitReaders(); }
  bool InBackward(int) const override { return unit_->in_backward(); }

  void BackwardEnter() override;
  void BackwardExit() override;
  void BackwardAbandon() noexcept override;

  void Report(LogLevel level, std::string_view text) override;
  bool TakeFirst() override { return std::exchange(first_report_, false); }

  // Leaves a forward scope while unwinding. An outermost one marks the step failed, with this
  // reason.
  void Unwind(const std::string& why) noexcept;

 private:
  int64_t Version() const;
  void FailIfOutermost(const std::string& why) noexcept;
  void CopyAliases(CallRecord& record);
  void Adopt(int index);
  bool reshard_after_forward() const {
    return options_.reshard_after_forward.value_or(parent_ != nullptr);
  }

  Module& module_;
  const std::vector<Parameter> parameters_;
  const std::shared_ptr<ShardContext> context_;
  const FullyShardOptions options_;
  std::unique_ptr<Unit> unit_;
  ShardedModule* parent_ = nullptr;
  bool first_report_ = true;
};

namespace {

std::string CurrentErrorText() noexcept {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

std::vector<UnitParameter> Describe(const std::vector<Parameter>& parameters) {
  std::vector<UnitParameter> described;
  for (const Parameter& p : parameters) {
    described.push_back({p.name(), p.shape(), p.dtype(), p.requires_grad()});
  }
  return described;
}

ShardedModule* ShardedOf(const Module& module) {
  for (const std::shared_ptr<Interceptor>& interceptor : module.interceptors()) {
    if (auto* sharded = dynamic_cast<ShardedModule*>(interceptor.get())) return sharded;
  }
  return nullptr;
}

void CollectSharded(const Module& module, std::vector<ShardedModule*>& out) {
  if (ShardedModule* sharded = ShardedOf(module)) out.push_back(sharded);
  for (const Module* child : module.children()) CollectSharded(*child, out);
}

bool IsBelow(const Module& module, const Module& ancestor) {
  for (const Module* m = &module; m != nullptr; m = m->parent()) {
    if (m == &ancestor) return true;
  }
  return false;
}

}  // namespace

ShardedModule::ShardedModule(Module& module, std::vector<Parameter> parameters,
                             std::shared_ptr<ShardContext> context, FullyShardOptions options)
    : module_(module),
      parameters_(std::move(parameters)),
      context_(std::move(context)),
      options_(options),
      unit_(std::make_unique<Unit>(PathOf(&module), Describe(parameters_), context_)) {
  for (int i = 0; i < unit_->parameters(); ++i) Adopt(i);
  unit_->SetPrefetch([this] { return Version(); }, options_.prefetch);
}

// Moves a parameter into the unit. One that has values leaves its piece of them in the shard.
void ShardedModule::Adopt(int index) {
  ParameterState& state = parameters_[static_cast<size_t>(index)].state();
  const Tensor& local = unit_->local(index);
  const int64_t offset = unit_->local_offset(index);
  if (state.local.defined()) {
    kernels::Copy(state.local.Slice(0, offset, offset + local.numel()), local);
  }
  state.value = unit_->full(index);
  state.local = local;
  state.local_offset = offset;
  state.grad = Tensor();
  state.has_grad = false;
  state.host = this;
  state.host_index = index;
}

ShardedModule::~ShardedModule() {
  for (const Parameter& parameter : parameters_) {
    ParameterState& state = parameter.state();
    if (state.host == this) state.host = nullptr;
  }
}

// One number for the state of all parameters: every change raises one of the versions.
int64_t ShardedModule::Version() const {
  int64_t version = 0;
  for (const Parameter& parameter : parameters_) version += parameter.version();
  return version;
}

void ShardedModule::Around(const CallContext& call) {
  context_->CheckUsable();
  try {
    Enter();
    try {
      const ScopeGuard scope(*this, &module_);
      call.Proceed();
      CopyAliases(call.record());
    } catch (...) {
      unit_->AbandonForward();
      throw;
    }
    Exit();
  } catch (...) {
    FailIfOutermost(CurrentErrorText());
    throw;
  }
}

void ShardedModule::FailIfOutermost(const std::string& why) noexcept {
  if (parent_ == nullptr || !parent_->unit_->open()) context_->Fail(why);
}

void ShardedModule::Unwind(const std::string& why) noexcept {
  unit_->AbandonForward();
  FailIfOutermost(why);
}

void ShardedModule::Exit() {
  AfterForward after = reshard_after_forward() ? AfterForward::kReshard : AfterForward::kKeep;
  if (!IsRecording()) after = AfterForward::kReshard;  // no backward will come
  if (ScopeGuard::InRecompute()) after = AfterForward::kForNow;
  unit_->ExitForward(after);
}

// A result that is a view of the unit's memory would be gone with the next reshard.
void ShardedModule::CopyAliases(CallRecord& record) {
  record.VisitResult([this](Variable& variable) {
    if (!variable.defined()) return;
    for (int i = 0; i < unit_->parameters(); ++i) {
      if (variable.value().storage() == unit_->full(i).storage()) {
        variable = Scale(variable, 1.0);
        return;
      }
    }
  });
}

void ShardedModule::CheckRead(int index) const {
  const bool open = unit_->open();
  if (open && unit_->gathered_version() == Version()) return;
  ThrowFailedPrecondition(absl::StrCat(
      "parameter '", parameters_[static_cast<size_t>(index)].name(), "' of unit '", unit_->name(),
      open ? "' is read after a parameter of its unit was changed in the same call; change them "
             "between calls"
           : "' is read outside a call of its module; open a UnitScope around the read"));
}

GradTarget ShardedModule::TakeGradTarget(int index) {
  const UnitGradient gradient = unit_->TakeGradient(index);
  return {gradient.tensor, gradient.add ? kernels::Write::kAdd : kernels::Write::kOverwrite};
}

// A scope that failed to open or close is no longer entered, so nobody else would say that the step
// failed.
void ShardedModule::BackwardEnter() {
  try {
    unit_->BeginBackward(Version());
  } catch (...) {
    context_->Fail(CurrentErrorText());
    throw;
  }
}

void ShardedModule::BackwardExit() {
  try {
    unit_->EndBackward();
  } catch (...) {
    context_->Fail(CurrentErrorText());
    throw;
  }
  // The outermost unit's backward ends a step's: what a forward gathered and nobody used goes too.
  if (parent_ == nullptr && !unit_->open()) context_->ReshardIdle();
}

void ShardedModule::Report(LogLevel level, std::string_view text) {
  if (context_->log()) context_->log()({level, context_->rank(), text});
}

void ShardedModule::BackwardAbandon() noexcept {
  unit_->AbandonBackward();
  context_->Fail(CurrentErrorText());
}

void FullyShardModule(Module& module, const Mesh& mesh, const FullyShardOptions& options) {
  const ErrorContext what{.op = "FullyShard", .module_path = PathOf(&module)};
  if (ShardedOf(module) != nullptr) ThrowInvalidArgument("the module is a unit already", what);
  if (options.prefetch < 0) {
    ThrowInvalidArgument(absl::StrCat("prefetch is ", options.prefetch, "; it is 0 or more"), what);
  }
  std::shared_ptr<ShardContext> context = ShardContext::Of(mesh);
  std::vector<Parameter> mine;
  for (const Parameter& parameter : module.parameters()) {
    const ParameterState& state = parameter.state();
    if (parameter.numel() == 0) {
      ThrowInvalidArgument(absl::StrCat("parameter '", parameter.name(), "' has no elements"),
                           what);
    }
    if (state.local.defined() && !(state.local.device() == context->device())) {
      ThrowInvalidArgument(
          absl::StrCat("parameter '", parameter.name(), "' is on ",
                       state.local.device().id().ToString(), ", the mesh computes on ",
                       context->device().id().ToString()),
          what);
    }
    if (state.host == nullptr) {
      mine.push_back(parameter);
      continue;
    }
    const auto* host = dynamic_cast<const ShardedModule*>(state.host);
    if (host == nullptr || !IsBelow(host->module(), module)) {
      ThrowInvalidArgument(
          absl::StrCat("parameter '", parameter.name(), "' is shared with ",
                       host == nullptr ? "another host" : PathOf(&host->module()),
                       ", which owns it already; shard their common ancestor instead of either"),
          what);
    }
  }
  std::vector<ShardedModule*> inner;
  CollectSharded(module, inner);
  auto sharded =
      std::make_shared<ShardedModule>(module, std::move(mine), std::move(context), options);
  for (ShardedModule* child : inner) {
    if (child->parent() == nullptr) child->set_parent(sharded.get());
  }
  module.AddInterceptor(std::move(sharded));
}

}  // namespace internal

namespace {

internal::ShardedModule& ShardedOrThrow(const Module& module, const char* op) {
  if (internal::ShardedModule* sharded = internal::ShardedOf(module)) return *sharded;
  ThrowInvalidArgument("the module is not a unit",
                       {.op = op, .module_path = internal::PathOf(&module)});
}

}  // namespace

void StartUnshard(Module& module) {
  internal::ShardedModule& sharded = ShardedOrThrow(module, "StartUnshard");
  sharded.context()->CheckUsable();
  sharded.unit().Prefetch();
}

void Reshard(Module& module) { ShardedOrThrow(module, "Reshard").unit().Reshard(); }

Unit* UnitOf(const Module& module) {
  internal::ShardedModule* sharded = internal::ShardedOf(module);
  return sharded != nullptr ? &sharded->unit() : nullptr;
}

std::vector<Unit*> UnitsOf(const Module& module) {
  std::vector<internal::ShardedModule*> sharded;
  internal::CollectSharded(module, sharded);
  std::vector<Unit*> units;
  for (internal::ShardedModule* s : sharded) units.push_back(&s->unit());
  return units;
}

std::shared_ptr<ShardContext> ContextOf(const Module& module) {
  std::vector<internal::ShardedModule*> sharded;
  internal::CollectSharded(module, sharded);
  return sharded.empty() ? nullptr : sharded.front()->context();
}

struct UnitScope::State {
  internal::ShardedModule* sharded;
  std::unique_ptr<ScopeGuard> scope;
  const int exceptions = std::uncaught_exceptions();
};

UnitScope::UnitScope(Module& module) : state_(std::make_unique<State>()) {
  state_->sharded = &ShardedOrThrow(module, "UnitScope");
  state_->sharded->context()->CheckUsable();
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
  if (std::shared_ptr<ShardContext> context = ContextOf(model)) context->Recover();
  for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
}

}  // namespace sherd
