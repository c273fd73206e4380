#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sherd/runtime/core/events.h"

namespace sherd {

// Records of an event log put together: one entry for each event, at the point it had reached.
struct Timeline {
  // Ended, and instants; ordered by start, the longer first among equals.
  std::vector<Event> spans;
  // Begun and not ended; ordered by start.
  std::vector<Event> running;
  // Asked for and not begun; ordered by the time they were asked for.
  std::vector<Event> queued;
};

// Puts the records together that EventLog::Read returned. What began before the first of them and
// has no start time is left out. Cost: n log n.
Timeline MakeTimeline(std::span<const Event> records);

// "forward block0", "all_gather block0", "wait all_gather block0", "step 12": what people read.
std::string TitleOf(const EventLog& log, const Event& event);

// The first pair of spans on one lane that overlap without one lying within the other; empty if
// there is none. For tests of whoever writes events.
std::string FindOverlap(const EventLog& log, const Timeline& timeline);

}  // namespace sherd
