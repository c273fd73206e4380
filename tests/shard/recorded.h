#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sherd/runtime/comm/recording_group.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

// Runs `body` on each of `ranks` ranks; it is given its world and the log of its rank's
// collectives.
inline void RunRecorded(int ranks, const std::function<void(World&, CollectiveLog&)>& body) {
  std::vector<std::shared_ptr<CollectiveLog>> logs;
  for (int rank = 0; rank < ranks; ++rank) logs.push_back(std::make_shared<CollectiveLog>());
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    const auto log = logs[static_cast<size_t>(group->rank())];
    return MakeRecordingGroup(std::move(group), log);
  };
  RunRanks(
      ranks, [&](World& world) { body(world, *logs[static_cast<size_t>(world.rank())]); }, options);
}

}  // namespace sherd::testing
