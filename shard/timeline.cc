#include "sherd/shard/timeline.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

bool SameKind(const Event& a, const Event& b) {
  return a.lane == b.lane && a.kind == b.kind && a.phase == b.phase && a.op == b.op &&
         a.unit == b.unit;
}

// Whether `open` is what `record` goes on with: by the time they share.
bool GoesOn(const Event& open, const Event& record, int64_t Event::*time) {
  return SameKind(open, record) && (record.*time == 0 || open.*time == record.*time);
}

// Takes the latest one out that `record` goes on with. Returns whether there was one.
bool TakeLatest(std::vector<Event>& open, const Event& record, int64_t Event::*time, Event* taken) {
  for (size_t i = open.size(); i-- > 0;) {
    if (!GoesOn(open[i], record, time)) continue;
    *taken = open[i];
    open.erase(open.begin() + static_cast<int64_t>(i));
    return true;
  }
  return false;
}

}  // namespace

Timeline MakeTimeline(std::span<const Event> records) {
  Timeline timeline;
  Event before;
  for (const Event& record : records) {
    switch (record.point) {
      case EventPoint::kEnqueue:
        timeline.queued.push_back(record);
        break;
      case EventPoint::kBegin:
        if (record.enqueue_ns != 0)
          TakeLatest(timeline.queued, record, &Event::enqueue_ns, &before);
        timeline.running.push_back(record);
        break;
      case EventPoint::kEnd: {
        const bool begun = TakeLatest(timeline.running, record, &Event::start_ns, &before);
        if (!begun && record.start_ns == 0) break;
        timeline.spans.push_back(record);
        if (record.start_ns == 0) timeline.spans.back().start_ns = before.start_ns;
        break;
      }
      case EventPoint::kInstant:
        timeline.spans.push_back(record);
        break;
    }
  }
  const auto earlier = [](const Event& a, const Event& b) {
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
  };
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(), earlier);
  std::stable_sort(timeline.running.begin(), timeline.running.end(), earlier);
  return timeline;
}

std::string TitleOf(const EventLog& log, const Event& event) {
  std::string title;
  const auto add = [&](std::string_view word) {
    if (!word.empty()) title.append(title.empty() ? "" : " ").append(word);
  };
  switch (event.kind) {
    case EventKind::kScope:
      add(event.phase == EventPhase::kNone ? NameOf(event.kind) : NameOf(event.phase));
      break;
    case EventKind::kCollective:
      add(NameOf(event.op));
      break;
    case EventKind::kWait:
    case EventKind::kReshard:
    case EventKind::kUpdate:
      add(NameOf(event.kind));
      add(NameOf(event.op));
      break;
    case EventKind::kStep:
      add(NameOf(event.kind));
      add(std::to_string(event.sequence));
      break;
  }
  add(log.NameOf(event.unit));
  return title;
}

std::string FindOverlap(const EventLog& log, const Timeline& timeline) {
  for (EventLane lane : {EventLane::kCompute, EventLane::kGather, EventLane::kReduce}) {
    std::vector<const Event*> around;  // spans that lie within each other, the innermost last
    for (const Event& span : timeline.spans) {
      if (span.lane != lane) continue;
      while (!around.empty() && around.back()->end_ns <= span.start_ns) around.pop_back();
      if (!around.empty() && span.end_ns > around.back()->end_ns) {
        return absl::StrCat(TitleOf(log, *around.back()), " [", around.back()->start_ns, ", ",
                            around.back()->end_ns, ") overlaps ", TitleOf(log, span), " [",
                            span.start_ns, ", ", span.end_ns, ") on lane ",
                            std::string(NameOf(lane)));
      }
      around.push_back(&span);
    }
  }
  return "";
}

}  // namespace sherd
