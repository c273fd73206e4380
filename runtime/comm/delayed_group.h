#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd {

struct DelayOptions {
  uint64_t seed = 1;
  // Delays are uniform in [0, max_delay), before a collective starts and again before it returns.
  absl::Duration max_delay = absl::Milliseconds(2);
};

// Wraps `inner` so that each collective sleeps before and after: shuffles the order in which ranks
// and streams arrive, to show missing waits. For tests.
//
// The delays of a call depend on seed, rank, fork name and sequence number alone.
std::unique_ptr<ProcessGroup> MakeDelayedGroup(std::shared_ptr<ProcessGroup> inner,
                                               DelayOptions options = {});

}  // namespace sherd
