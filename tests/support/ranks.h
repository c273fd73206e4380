#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/comm/world.h"

namespace sherd::testing {

struct RankOptions {
  // A collective that takes longer fails; generous, since sanitizers are slow.
  absl::Duration collective_timeout = absl::Seconds(60);
  absl::Duration rendezvous_timeout = absl::Seconds(30);
  int threads = 1;                         // compute threads of each rank's device
  int64_t piece_bytes = int64_t{1} << 20;  // see WorldOptions
  LogSink log;
  // Where the ranks compute; see WorldOptions.
  DeviceKind device = DeviceKind::kCpu;
  int cuda_index = -1;  // -1: of the rank's number
  int64_t cuda_memory_bytes = 0;
  GroupDriver driver = GroupDriver::kAuto;
  // Wraps each rank's group, e.g. in MakeRecordingGroup or MakeDelayedGroup.
  std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)> wrap_group;
};

// Calls `body` once for each of `world_size` ranks, each on a thread of its own with its own World
// and Device, connected by Gloo over loopback (a local group for one rank).
//
// An exception on one rank aborts the groups of that rank, so that the others end too. When all
// have ended, the exception that was thrown first is thrown again here. Works with gtest's ASSERT
// and EXPECT inside `body` (ASSERT returns from that rank alone: follow it by no collective others
// wait in).
void RunRanks(int world_size, const std::function<void(World&)>& body, RankOptions options = {});

// As RunRanks, with each rank's group handed to `transport` first, whatever options.wrap_group
// makes of the result. A program that defines a RunRanks of its own by this, instead of linking
// ours, runs a whole file of tests over another transport.
using Transport = std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup> group)>;
void RunRanksOver(const Transport& transport, int world_size,
                  const std::function<void(World&)>& body, RankOptions options);

}  // namespace sherd::testing
