#pragma once

#include <memory>

#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/device.h"

namespace sherd::testing {

// What a test of host buffers makes of a group for those of a device: each call copies its buffers
// into memory of `device`, has `inner` work on them there, waits, and copies the results back.
//
// In place stays in place. Forks have queues of their own, so that they may run at once.
// Errors: also what the group says only after a call has returned.
std::unique_ptr<ProcessGroup> MakeThroughDevice(std::shared_ptr<ProcessGroup> inner, Device device);

}  // namespace sherd::testing
