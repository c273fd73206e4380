#pragma once

#include <cstdint>

#include "sherd/runtime/core/device.h"

namespace sherd::testing {

// What a fake device was asked for so far. Shared by all its queues.
struct FakeDeviceCounts {
  int64_t synchronizations = 0;  // by hand or by a copy that waits
  int64_t host_bytes = 0;        // the most host memory it had lent at once
  int64_t stale_copies = 0;      // from or to host memory that had been given back
};

// A device of this process's own memory that works as late as it may: a queue runs what it was
// asked for when somebody waits for that, and not before. So a copy that nobody waited for shows in
// every run, as old bytes. It has no kernels.
//
// Threads: safe.
Device MakeFakeDevice();
FakeDeviceCounts CountsOf(const Device& device);

}  // namespace sherd::testing
