#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/internal/region.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/tape.h"
#include "sherd/shard/context.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/unit.h"

namespace sherd::internal {

// What FullyShard puts on modules: translates scopes of calls into the calls of a unit, and
// gradients of parameters into its buffers. One for all modules of a list.
class ShardedModule final : public Interceptor,
                            public ParameterHost,
                            public ScopeObserver,
                            public GatheringScope {
 public:
  ShardedModule(std::vector<Module*> modules, std::vector<Parameter> parameters,
                std::shared_ptr<ShardContext> context, const FullyShardOptions& options);
  ~ShardedModule() override;

  Unit& unit() const { return *unit_; }
  const std::vector<Module*>& modules() const { return modules_; }
  const std::shared_ptr<ShardContext>& context() const { return context_; }
  FullyShardOptions& options() { return options_; }
  void set_parent(ShardedModule* parent) { parent_ = parent; }
  ShardedModule* parent() const { return parent_; }
  const ShardedModule& root() const;
  // Who divides, as the root says. Errors: kInvalidArgument if this one says other than its root.
  ScaleBy scale() const;

  // Errors: kFailedPrecondition after a failure, or for a parameter without values, naming it.
  void CheckUsable() const;
  void Around(const CallContext& call) override;
  void Enter() { unit_->EnterForward(version_); }
  void Exit();

  void CheckRead(int index) const override;
  GradTarget TakeGradTarget(int index) override;
  Tensor LocalGrad(int index) const override { return unit_->LocalGradient(index); }
  void ClearGrad(int index) override { unit_->ClearGradient(index); }
  void AwaitReaders(int) override {
    unit_->AwaitReaders();
    ++version_;  // a write follows
  }
  bool InBackward(int) const override { return unit_->in_backward(); }
  void RequiresGradChanged(int index) override {
    unit_->SetTrainable(index, parameters_[static_cast<size_t>(index)].requires_grad());
  }

  void BackwardEnter() override;
  void BackwardExit() override;
  void BackwardAbandon() noexcept override;
  void BackwardEnded() override;
  std::optional<double> SeedFactor() override;

  void Report(LogLevel level, std::string_view text) override;
  bool TakeFirst() override { return std::exchange(first_report_, false); }

  // Leaves a forward scope while unwinding. An outermost one marks the step failed, with this
  // reason.
  void Unwind(const std::string& why) noexcept;

 private:
  void FailIfOutermost(const std::string& why) noexcept;
  void CopyAliases(CallRecord& record);
  void Adopt(int index);
  bool is_list() const { return modules_.size() > 1; }
  bool outermost() const { return parent_ == nullptr || !parent_->unit_->open(); }
  AfterScope after_forward() const;

  const std::vector<Module*> modules_;
  const std::vector<Parameter> parameters_;
  const std::shared_ptr<ShardContext> context_;
  FullyShardOptions options_;
  std::unique_ptr<Unit> unit_;
  ShardedModule* parent_ = nullptr;
  bool first_report_ = true;
  int64_t version_ = 1;  // of all parameters together: raised by every change of one
};

// The adapter of a module; null if it is no unit, or an error that says so in the name of `op`.
ShardedModule* ShardedOf(const Module& module);
ShardedModule& ShardedOrThrow(const Module& module, const char* op);
// Those of a module and all below it, each once, parents first.
std::vector<ShardedModule*> CollectSharded(const Module& module);
// The contexts of all units at and below these modules, each once: one for each mesh.
std::vector<ShardContext*> ContextsOf(const std::vector<Module*>& modules);

}  // namespace sherd::internal
