#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/cast_call.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/internal/sharded_module.h"

namespace sherd::internal {
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

std::vector<UnitParameter> Describe(const std::vector<Parameter>& parameters,
                                    const FullyShardOptions& options) {
  std::vector<UnitParameter> described;
  for (const Parameter& p : parameters) {
    const int64_t granule = options.granule ? options.granule(p) : 1;
    described.push_back({p.name(), p.shape(), p.dtype(), p.requires_grad(), granule});
  }
  return described;
}

std::string NameOf(const std::vector<Module*>& modules) {
  return absl::StrJoin(modules, " + ", [](std::string* out, const Module* module) {
    absl::StrAppend(out, PathOf(module));
  });
}

UnitOptions OptionsOf(const FullyShardOptions& options, bool is_list) {
  return {.stage = options.stage,
          .precision = options.precision,
          .park = options.park,
          .offload = options.offload,
          .reduce_once = options.reduce_once || is_list};
}

void Collect(const Module& module, std::vector<ShardedModule*>& out) {
  ShardedModule* sharded = ShardedOf(module);
  if (sharded != nullptr && std::find(out.begin(), out.end(), sharded) == out.end()) {
    out.push_back(sharded);
  }
  for (const Module* child : module.children()) Collect(*child, out);
}

}  // namespace

ShardedModule* ShardedOf(const Module& module) {
  for (const std::shared_ptr<Interceptor>& interceptor : module.interceptors()) {
    if (auto* sharded = dynamic_cast<ShardedModule*>(interceptor.get())) return sharded;
  }
  return nullptr;
}

ShardedModule& ShardedOrThrow(const Module& module, const char* op) {
  if (ShardedModule* sharded = ShardedOf(module)) return *sharded;
  ThrowInvalidArgument("the module is not a unit", {.op = op, .module_path = PathOf(&module)});
}

std::vector<ShardedModule*> CollectSharded(const Module& module) {
  std::vector<ShardedModule*> all;
  Collect(module, all);
  return all;
}

std::vector<ShardContext*> ContextsOf(const std::vector<Module*>& modules) {
  std::vector<ShardContext*> contexts;
  for (const Module* module : modules) {
    for (const ShardedModule* sharded : CollectSharded(*module)) {
      ShardContext* const context = sharded->context().get();
      if (std::find(contexts.begin(), contexts.end(), context) == contexts.end()) {
        contexts.push_back(context);
      }
    }
  }
  return contexts;
}

ShardedModule::ShardedModule(std::vector<Module*> modules, std::vector<Parameter> parameters,
                             std::shared_ptr<ShardContext> context,
                             const FullyShardOptions& options)
    : modules_(std::move(modules)),
      parameters_(std::move(parameters)),
      context_(std::move(context)),
      options_(options),
      unit_(std::make_unique<Unit>(NameOf(modules_), Describe(parameters_, options), context_,
                                   OptionsOf(options, is_list()))) {
  for (int i = 0; i < unit_->parameters(); ++i) Adopt(i);
  unit_->SetPrefetch([this] { return version_; }, options_.prefetch);
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

// Whoever gives values raises the version.
void ShardedModule::CheckUsable() const {
  context_->CheckUsable();
  for (const Parameter& parameter : parameters_) {
    if (parameter.version() > 0) continue;
    ThrowFailedPrecondition(absl::StrCat("parameter '", parameter.name(),
                                         "' was read before it was initialised or loaded"));
  }
}

void ShardedModule::Around(const CallContext& call) {
  CheckUsable();
  try {
    Enter();
    try {
      const ScopeGuard scope(*this, call.module());
      const MixedPrecision& precision = options_.precision;
      ProceedIn(call,
                {precision.cast_inputs ? precision.parameters : std::nullopt, precision.output});
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
  if (outermost()) context_->Fail(why);
}

void ShardedModule::Unwind(const std::string& why) noexcept {
  unit_->AbandonForward();
  FailIfOutermost(why);
}

AfterScope ShardedModule::after_forward() const {
  // In a recompute the call's own backward is next; of a list the next module is.
  if (ScopeGuard::InRecompute()) return AfterScope::kForNow;
  const bool next_member = is_list() && !outermost();
  // Without recording no backward will come.
  if (!IsRecording()) return next_member ? AfterScope::kForNow : AfterScope::kReshard;
  if (!options_.reshard_after_forward.value_or(parent_ != nullptr)) return AfterScope::kKeep;
  if (is_list()) return AfterScope::kForNow;
  return options_.park > 1 ? AfterScope::kPark : AfterScope::kReshard;
}

void ShardedModule::Exit() {
  unit_->ExitForward(after_forward(), IsRecording() && !ScopeGuard::InRecompute());
  if (IsRecording() || !outermost()) return;
  context_->announcer().Announce(UnitCall::Kind::kReshardKept);
  context_->ReshardKept();
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
  if (open && unit_->gathered_version() == version_) return;
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
    unit_->BeginBackward(version_);
  } catch (...) {
    context_->Fail(CurrentErrorText());
    throw;
  }
}

void ShardedModule::BackwardExit() {
  try {
    unit_->EndBackward(!options_.reshard_after_backward ? AfterScope::kKeep
                       : is_list()                      ? AfterScope::kForNow
                                                        : AfterScope::kReshard);
  } catch (...) {
    context_->Fail(CurrentErrorText());
    throw;
  }
}

// What calls have left is reduced. Where the outermost unit was in it, what a forward gathered and
// nobody used goes too; a backward of a part alone, of a head's chunk, leaves the rest gathered for
// theirs.
void ShardedModule::BackwardEnded() {
  try {
    if (parent_ == nullptr) {
      context_->announcer().Announce(UnitCall::Kind::kEndOfAllBackward);
      context_->EndOfBackward();
    } else {
      unit_->Announce(UnitCall::Kind::kEndOfBackward);
      unit_->EndOfBackward();
    }
  } catch (...) {
    context_->Fail(CurrentErrorText());
    throw;
  }
}

const ShardedModule& ShardedModule::root() const {
  const ShardedModule* root = this;
  while (root->parent_ != nullptr) root = root->parent_;
  return *root;
}

ScaleBy ShardedModule::scale() const {
  constexpr const char* kNames[] = {"kAuto", "kWindow", "kUnitDivisor", "kCaller"};
  const ScaleBy wanted = root().options_.scale;
  if (options_.scale == ScaleBy::kAuto || options_.scale == wanted) return wanted;
  ThrowInvalidArgument(
      absl::StrCat("unit '", unit_->name(),
                   "' says scale = ", kNames[static_cast<size_t>(options_.scale)], ", and '",
                   root().unit_->name(), "' around it ", kNames[static_cast<size_t>(wanted)],
                   ": the outermost says it for all"),
      {.op = "scale"});
}

std::optional<double> ShardedModule::SeedFactor() {
  return context_->scale().SeedFactor(root().unit(), scale());
}

void ShardedModule::Report(LogLevel level, std::string_view text) {
  if (context_->log()) context_->log()({level, context_->rank(), text});
}

void ShardedModule::BackwardAbandon() noexcept {
  unit_->AbandonBackward();
  context_->Fail(CurrentErrorText());
}

}  // namespace sherd::internal
