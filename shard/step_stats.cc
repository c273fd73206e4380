#include "sherd/shard/step_stats.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "sherd/shard/timeline.h"

namespace sherd {

StepStats SummarizeEvents(const EventLog& log, uint64_t from, uint64_t to) {
  to = std::min(to, log.position());
  const std::vector<Event> records = log.Read(from, to);
  const Timeline timeline = MakeTimeline(records);
  StepStats stats;
  stats.complete = records.size() == to - std::min(from, to);
  int64_t first = 0;
  int64_t last = 0;
  int64_t waited_until = 0;
  for (const Event& e : timeline.spans) {
    first = first == 0 ? e.start_ns : std::min(first, e.start_ns);
    last = std::max(last, e.end_ns);
    if (e.kind == EventKind::kCollective) {
      CollectiveFigures& figures = stats.collectives[static_cast<size_t>(e.op)];
      ++figures.count;
      figures.bytes += e.bytes;
      figures.busy_ns += e.end_ns - e.start_ns;
    }
    if (e.kind == EventKind::kWait && e.end_ns > waited_until) {
      int64_t& exposed =
          e.op == EventOp::kAllGather ? stats.exposed_gather_ns : stats.exposed_other_ns;
      exposed += e.end_ns - e.start_ns;
      waited_until = e.end_ns;
    }
  }
  stats.wall_ns = last - first;
  return stats;
}

std::string StepStats::ToString() const {
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  std::string text =
      absl::StrFormat("step of %.3f ms%s\n", ms(wall_ns),
                      complete ? "" : " (the event log was too small for all of it)");
  absl::StrAppendFormat(&text, "%-22s %8s %14s %12s\n", "collective", "count", "bytes", "busy ms");
  for (size_t op = 0; op < collectives.size(); ++op) {
    const CollectiveFigures& figures = collectives[op];
    if (figures.count == 0) continue;
    absl::StrAppendFormat(&text, "%-22s %8d %14d %12.3f\n",
                          std::string(NameOf(static_cast<EventOp>(op))), figures.count,
                          figures.bytes, ms(figures.busy_ns));
  }
  absl::StrAppendFormat(&text, "exposed: gathers %.3f ms, others %.3f ms\n", ms(exposed_gather_ns),
                        ms(exposed_other_ns));
  return text + memory.ToString();
}

StepMeter::StepMeter(const EventLog& log, CachingAllocator& allocator)
    : log_(log), allocator_(allocator), position_(log.position()), start_ns_(log.Now()) {
  allocator_.ResetPeaks();
}

StepStats StepMeter::Take() {
  const uint64_t position = log_.position();
  const int64_t now = log_.Now();
  StepStats stats = SummarizeEvents(log_, position_, position);
  stats.wall_ns = now - start_ns_;
  stats.memory = allocator_.stats();
  allocator_.ResetPeaks();
  position_ = position;
  start_ns_ = now;
  return stats;
}

}  // namespace sherd
