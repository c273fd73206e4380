#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/runtime/base/log.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/comm/store.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

struct GlooOptions {
  // Counts the receive buffers of reductions (MemoryCategory::kStaging).
  Device device;
  // The address this rank listens on, a name or a number; peers must reach it. Loopback is right
  // when all ranks share a host.
  std::string address = "127.0.0.1";
  // How long to wait for peers when connecting.
  absl::Duration connect_timeout = absl::Minutes(5);
  // Asked while connecting, every 50 ms: whether to give up. Null: never.
  std::function<bool()> should_stop;
  // How long one collective may take, the wait for slower ranks included. Saving a checkpoint or
  // evaluating on one rank only counts into the wait of the others.
  absl::Duration timeout = absl::Minutes(10);
  // Sends and receives are cut into pieces of this size. Smaller pieces cost more messages, larger
  // ones more staging (two pieces for each peer) and a later notice of a peer's death.
  int64_t piece_bytes = int64_t{1} << 20;
};

// Connects `size` ranks over TCP with Gloo and returns this rank's handle.
//
// COLLECTIVE. `store` is only used to find each other, and, while the group lives, to spread the
// news of an Abort; its keys must be of this job and this generation (see PrefixStore).
// Threads: starts three threads, Gloo's own, a watchdog and one that talks to the store; all block
//   all signals. The caller's signal mask is as before when this returns.
// Errors: kDeadlineExceeded naming the ranks that did not come, or kCancelled when one was told to
//   stop; kUnavailable when the store or a connection broke.
absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectGloo(std::shared_ptr<Store> store, int rank,
                                                          int size, GlooOptions options);

}  // namespace sherd
