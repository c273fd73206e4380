#include "sherd/autograd/module_hooks.h"

#include <exception>
#include <memory>
#include <utility>

#include "sherd/autograd/call.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

class HookInterceptor final : public Interceptor, public ScopeObserver {
 public:
  HookInterceptor(const Module& module, ModuleHooks hooks)
      : module_(module), hooks_(std::move(hooks)) {}

  void Around(const CallContext& call) override {
    const bool again = ScopeGuard::InRecompute();
    if (!again) Run(hooks_.before_forward);
    {
      const ScopeGuard scope(*this, &module_);
      call.Proceed();
    }
    if (!again) Run(hooks_.after_forward);
  }
  void BackwardEnter() override { Run(hooks_.before_backward); }
  void BackwardExit() override { Run(hooks_.after_backward); }
  void BackwardAbandon() noexcept override {}

 private:
  void Run(const std::function<void(const Module&)>& hook) const {
    if (!hook) return;
    const ErrorContext context{.op = "module hook", .module_path = internal::PathOf(&module_)};
    try {
      hook(module_);
    } catch (const Error& error) {
      throw error.With(context);
    } catch (const std::exception& error) {
      ThrowError(Error(absl::StatusCode::kUnknown, error.what(), context));
    }
  }

  const Module& module_;
  const ModuleHooks hooks_;
};

}  // namespace

void AddHooks(Module& module, ModuleHooks hooks) {
  module.AddInterceptor(std::make_shared<HookInterceptor>(module, std::move(hooks)));
}

}  // namespace sherd
