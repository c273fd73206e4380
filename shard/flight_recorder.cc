#include "sherd/shard/flight_recorder.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/runtime/base/new_file.h"
#include "sherd/shard/timeline.h"

namespace sherd {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// "gather   all_gather block0 #7, 4096 bytes, backward"
std::string Describe(const EventLog& log, const Event& event) {
  std::string text =
      absl::StrFormat("%-8s %s", std::string(NameOf(event.lane)), TitleOf(log, event));
  if (event.sequence != 0 && event.kind != EventKind::kStep)
    absl::StrAppend(&text, " #", event.sequence);
  if (event.bytes != 0) absl::StrAppend(&text, ", ", event.bytes, " bytes");
  if (event.phase != EventPhase::kNone && event.kind != EventKind::kScope)
    text.append(", ").append(NameOf(event.phase));
  return text;
}

int64_t TimeOf(const Event& event) {
  if (event.point == EventPoint::kEnqueue) return event.enqueue_ns;
  return event.point == EventPoint::kBegin ? event.start_ns : event.end_ns;
}

}  // namespace

std::string FlightRecord(const EventLog& log, int64_t last) {
  const std::vector<Event> records = log.Read();
  const int64_t now = log.Now();
  const Timeline timeline = MakeTimeline(records);
  std::string text = absl::StrFormat("rank %d: %d running, %d queued\n", log.rank(),
                                     timeline.running.size(), timeline.queued.size());
  for (const Event& e : timeline.running) {
    absl::StrAppendFormat(&text, "  running  %s: since %.6f s\n", Describe(log, e),
                          Seconds(now - e.start_ns));
  }
  for (const Event& e : timeline.queued) {
    absl::StrAppendFormat(&text, "  queued   %s: since %.6f s\n", Describe(log, e),
                          Seconds(now - e.enqueue_ns));
  }
  for (EventLane lane : {EventLane::kCompute, EventLane::kGather, EventLane::kReduce}) {
    const Event* latest = nullptr;
    for (const Event& e : timeline.spans) {
      if (e.lane == lane && (latest == nullptr || e.end_ns >= latest->end_ns)) latest = &e;
    }
    if (latest == nullptr) continue;
    absl::StrAppendFormat(&text, "  last     %s: %.6f s ago, took %.6f s\n", Describe(log, *latest),
                          Seconds(now - latest->end_ns),
                          Seconds(latest->end_ns - latest->start_ns));
  }
  const auto shown = std::clamp<int64_t>(last, 0, static_cast<int64_t>(records.size()));
  absl::StrAppendFormat(&text, "latest %d of %d records\n", shown, log.position());
  for (size_t i = records.size() - static_cast<size_t>(shown); i < records.size(); ++i) {
    const Event& e = records[i];
    absl::StrAppendFormat(&text, "  %12.6f s %-8s %s\n", Seconds(TimeOf(e) - now),
                          std::string(sherd::NameOf(e.point)), Describe(log, e));
  }
  return text;
}

absl::Status WriteFlightRecord(const std::string& path, std::string_view what,
                               const EventLog& log) {
  return WriteWholeFile(path, absl::StrCat("rank ", log.rank(), " failed: ", std::string(what),
                                           "\n", FlightRecord(log, log.capacity())));
}

}  // namespace sherd
