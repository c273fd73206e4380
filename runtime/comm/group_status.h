#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd::status {

// The collectives of a ProcessGroup for callers without exceptions: the same calls with the same
// contracts, whose errors are returned. None of them throws. COLLECTIVE, all of them.
// Threads: as the group's.

// Replaces `data` by the sum of the ranks' `data`.
inline absl::Status AllReduce(ProcessGroup& group, void* data, int64_t elems,
                              DType dtype) noexcept {
  return StatusOf([&] { group.AllReduce(data, elems, dtype); });
}
// Puts every rank's shard into `full`.
inline absl::Status AllGather(ProcessGroup& group, const void* shard, void* full,
                              int64_t bytes_per_rank) noexcept {
  return StatusOf([&] { group.AllGather(shard, full, bytes_per_rank); });
}
// Replaces `data` by what rank `root` has there.
inline absl::Status Broadcast(ProcessGroup& group, void* data, int64_t bytes, int root) noexcept {
  return StatusOf([&] { group.Broadcast(data, bytes, root); });
}
// Returns when every rank has called it.
inline absl::Status Barrier(ProcessGroup& group) noexcept {
  return StatusOf([&] { group.Barrier(); });
}

}  // namespace sherd::status
