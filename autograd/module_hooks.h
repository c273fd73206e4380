#pragma once

#include <functional>

#include "sherd/autograd/module.h"

namespace sherd {

// What to do around the calls of one module. Empty functions are skipped.
//
// Each function runs exactly once for each call it applies to, whatever wraps the module: a
// recompute is no call of its own, and a call that the loss does not depend on has no backward.
// Errors: what a function throws reaches the caller of the forward or the backward with its own
// text and the module's path. Nothing is left on its way; the next step is right, after Recover()
// where the model is sharded.
// Threads: that of the call. Ownership: the module keeps the functions.
struct ModuleHooks {
  std::function<void(const Module&)> before_forward;
  std::function<void(const Module&)> after_forward;
  // When backward enters a recorded call, before the first of its ops.
  std::function<void(const Module&)> before_backward;
  // When backward leaves it: every gradient of this call has been accumulated.
  std::function<void(const Module&)> after_backward;
};

// Puts hooks around every later call of `module`, outside the wrappers that are there already and
// inside those that come later. Several may be added.
void AddHooks(Module& module, ModuleHooks hooks);

}  // namespace sherd
