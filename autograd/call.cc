#include "sherd/autograd/call.h"

#include <utility>

#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/core/random.h"

namespace sherd {

void CallContext::Proceed() const {
  if (wrappers_ == 0) {
    record_->Invoke();
    return;
  }
  const std::vector<std::shared_ptr<Interceptor>>& all = module_->interceptors();
  // Held: a call may take its own wrapper off.
  const std::shared_ptr<Interceptor> next = all[all.size() - wrappers_];
  next->Around(CallContext(module_, record_, wrappers_ - 1));
}

namespace internal {

ThreadState& CurrentThread() {
  thread_local ThreadState state;
  return state;
}

std::string PathOf(const Module* module) {
  if (module == nullptr) return "";
  std::string path = module->path();
  return path.empty() ? "the root module" : path;
}

std::string CurrentModulePath() {
  const CallFrame* frame = CurrentThread().frame;
  return frame != nullptr ? PathOf(frame->module) : "";
}

bool Recorder::Knows(const Ref<Home>& variable_home) const {
  if (!variable_home) return true;
  for (const Recorder* level = this; level != nullptr; level = level->outer) {
    if (variable_home == level->home) return true;
    if (level->root) return false;
  }
  return false;
}

FrameGuard::FrameGuard(const Module& module) {
  CallFrame* parent = CurrentThread().frame;
  frame_.parent = parent;
  frame_.module = &module;
  if (parent != nullptr) {
    // Outermost calls are counted together and nameless: the path is the same wherever a model is
    // embedded.
    const bool outermost = parent->module == nullptr;
    const Module* key = outermost ? nullptr : &module;
    uint32_t* count = nullptr;
    for (auto& [called, times] : parent->calls) {
      if (called == key) count = &times;
    }
    if (count == nullptr) count = &parent->calls.emplace_back(key, 0u).second;
    const uint64_t ordinal = (*count)++;
    frame_.path =
        outermost ? Mix64(ordinal) : Mix64(Mix64(parent->path, module.name_hash()), ordinal);
    frame_.random = parent->random;
  }
  CurrentThread().frame = &frame_;
}

FrameGuard::FrameGuard(CallFrame frame) : frame_(std::move(frame)) {
  frame_.parent = CurrentThread().frame;
  CurrentThread().frame = &frame_;
}

FrameGuard::~FrameGuard() { CurrentThread().frame = frame_.parent; }

}  // namespace internal
}  // namespace sherd
