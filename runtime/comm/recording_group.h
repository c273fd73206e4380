#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// One collective a rank called, as it was called.
struct CollectiveRecord {
  CollectiveOp op = CollectiveOp::kBarrier;
  int64_t bytes = 0;  // see CollectiveCall
  DType dtype = DType::kF32;
  uint64_t sequence = 0;  // within its group
  // "" for the group that was wrapped; for forks and splits their name, behind the name of the
  // fork or split they came from: "replicate/reduce".
  std::string group;
  std::string module_path;  // of the caller's ErrorContext
};

// What was called, in the order in which calls began; one log for a group and its forks.
//
// Threads: safe.
class CollectiveLog {
 public:
  // Adds one call; what MakeRecordingGroup's groups do.
  void Append(CollectiveRecord record);
  // A copy of everything so far.
  std::vector<CollectiveRecord> records() const;
  // How often `op` was called, on any group.
  int64_t count(CollectiveOp op) const;
  // The sum of the records' bytes for `op`.
  int64_t bytes(CollectiveOp op) const;
  // Forgets everything, for the next phase of a test.
  void Clear();

 private:
  mutable std::mutex mutex_;
  std::vector<CollectiveRecord> records_;
};

// Wraps `inner` so that every collective is written to `log` when it begins; forks and
// splits write to the same log. Changes nothing else. Ownership: shares both.
std::unique_ptr<ProcessGroup> MakeRecordingGroup(std::shared_ptr<ProcessGroup> inner,
                                                 std::shared_ptr<CollectiveLog> log);

}  // namespace sherd
