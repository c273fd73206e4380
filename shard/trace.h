#pragma once

#include <ostream>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "sherd/runtime/core/events.h"

namespace sherd {

// Writes what a log holds as a trace that chrome://tracing and Perfetto open: a process for each
// rank, in it the threads "compute", "gather" and "reduce". What has not ended yet is drawn as open
// or as a mark "queued".
//
// Times are those of the host's calendar clock, so traces of several hosts are as far apart as
// their clocks. Threads: may be called while others write; what they write meanwhile may be
// missing. Source: "Trace Event Format", the JSON object format.
void WriteChromeTrace(const EventLog& log, std::ostream& out);
// The same for several ranks of this process in one file.
void WriteChromeTrace(std::span<const EventLog* const> logs, std::ostream& out);
// The same into a file, which is replaced. Errors: kUnavailable naming the path and the reason.
absl::Status WriteChromeTrace(const EventLog& log, const std::string& path);

// Puts traces that WriteChromeTrace wrote, one for each rank, into one.
// Errors: nothing is written then. kUnavailable if a file cannot be read or written,
//   kInvalidArgument if one is no such trace or is cut off; naming it.
absl::Status MergeChromeTraces(std::span<const std::string> paths, const std::string& merged);

}  // namespace sherd
