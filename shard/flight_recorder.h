#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "sherd/runtime/core/events.h"

namespace sherd {

// Tells from a log what was in flight, what was done last on each lane, and the latest `last`
// records, as text: to be logged when a deadline has passed or a step failed.
//
// Ranks that hang together are compared line by line: the collective that one has begun and another
// has not asked for is where they parted. Times are seconds before now.
// Threads: may be called while others write; never waits for a rank or a stream.
std::string FlightRecord(const EventLog& log, int64_t last = 64);

// Writes `what` failed and the record to a file, whole or not at all. Units write theirs by
// themselves (ShardContext::SetEvents); this is for what fails outside of them, as at a world's
// end. Errors: those of NewFile.
absl::Status WriteFlightRecord(const std::string& path, std::string_view what, const EventLog& log);

}  // namespace sherd
