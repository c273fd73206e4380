#include "sherd/runtime/core/device_backend.h"

namespace sherd {
namespace {

// The innermost scope of this thread.
thread_local QueueScope* innermost = nullptr;

}  // namespace

QueueScope::QueueScope(const DeviceBackend& backend, DeviceQueue& queue)
    : backend_(&backend), queue_(&queue), outer_(innermost) {
  innermost = this;
}

QueueScope::~QueueScope() { innermost = outer_; }

DeviceQueue& DeviceBackend::queue() const {
  for (const QueueScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->backend_ == this) return *scope->queue_;
  }
  return compute_queue();
}

}  // namespace sherd
