#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/events.h"

namespace sherd {

// Collectives of one op that ended in a stretch of the event stream.
struct CollectiveFigures {
  int64_t count = 0;
  int64_t bytes = 0;    // of the whole buffers, as in Event
  int64_t busy_ns = 0;  // while they ran, the wait for slower ranks included
};

// What one step cost this rank.
struct StepStats {
  int64_t wall_ns = 0;
  // By EventOp.
  std::array<CollectiveFigures, 6> collectives{};
  // How long compute waited for gathers, and for reductions and all else: communication that was
  // not hidden. A wait inside a wait counts once.
  int64_t exposed_gather_ns = 0;
  int64_t exposed_other_ns = 0;
  // By category; peaks since the step began.
  MemoryStats memory;
  // The log had room for all of the step; otherwise the figures above say less than there was.
  bool complete = true;

  const CollectiveFigures& operator[](EventOp op) const {
    return collectives[static_cast<size_t>(op)];
  }
  // A table for people: collectives, waits, then memory by category.
  std::string ToString() const;
};

// Sums up the records from place `from` up to `to` of a log, without the memory. What ended there
// counts, whole.
StepStats SummarizeEvents(const EventLog& log, uint64_t from, uint64_t to);

// Takes the figures of one step after another.
//
// Ownership: borrows both, which must outlive it. Threads: the thread that runs the model, while no
// collective is in flight whose figures matter. Cost: nothing in a step; a pass over its records at
// its end.
class StepMeter {
 public:
  // Begins the first step. Resets the allocator's peaks, here and at each step's end.
  StepMeter(const EventLog& log, CachingAllocator& allocator);
  // The figures since the constructor or the last Take; the next step begins.
  StepStats Take();

 private:
  const EventLog& log_;
  CachingAllocator& allocator_;
  uint64_t position_ = 0;
  int64_t start_ns_ = 0;
};

}  // namespace sherd
