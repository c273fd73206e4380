#include "sherd/runtime/core/events.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t WallNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

constexpr int kWords = 7;

// An event as the ring holds it.
struct Packed {
  uint64_t words[kWords];
};

Packed Pack(const Event& e) {
  const auto byte = [](auto value) { return static_cast<uint64_t>(value) & 0xff; };
  const uint64_t kinds = byte(e.kind) | byte(e.point) << 8 | byte(e.lane) << 16 |
                         byte(e.phase) << 24 | byte(e.op) << 32;
  const auto word = [](int64_t value) { return static_cast<uint64_t>(value); };
  return {{kinds, word(e.unit), word(e.sequence), word(e.bytes), word(e.enqueue_ns),
           word(e.start_ns), word(e.end_ns)}};
}

Event Unpack(const Packed& packed, uint64_t index) {
  const uint64_t* w = packed.words;
  const auto number = [](uint64_t word) { return static_cast<int64_t>(word); };
  Event e;
  e.kind = static_cast<EventKind>(w[0] & 0xff);
  e.point = static_cast<EventPoint>(w[0] >> 8 & 0xff);
  e.lane = static_cast<EventLane>(w[0] >> 16 & 0xff);
  e.phase = static_cast<EventPhase>(w[0] >> 24 & 0xff);
  e.op = static_cast<EventOp>(w[0] >> 32 & 0xff);
  e.unit = static_cast<int>(w[1]);
  e.sequence = number(w[2]);
  e.bytes = number(w[3]);
  e.enqueue_ns = number(w[4]);
  e.start_ns = number(w[5]);
  e.end_ns = number(w[6]);
  e.index = index;
  return e;
}

}  // namespace

std::string_view NameOf(EventLane lane) {
  constexpr std::string_view kNames[] = {"compute", "gather", "reduce"};
  return kNames[static_cast<int>(lane)];
}

std::string_view NameOf(EventKind kind) {
  constexpr std::string_view kNames[] = {"scope",   "collective", "wait",
                                         "reshard", "update",     "step"};
  return kNames[static_cast<int>(kind)];
}

std::string_view NameOf(EventPhase phase) {
  constexpr std::string_view kNames[] = {"", "forward", "recompute", "backward", "finish"};
  return kNames[static_cast<int>(phase)];
}

std::string_view NameOf(EventOp op) {
  constexpr std::string_view kNames[] = {"",           "all_gather", "reduce_scatter",
                                         "all_reduce", "broadcast",  "barrier"};
  return kNames[static_cast<int>(op)];
}

std::string_view NameOf(EventPoint point) {
  constexpr std::string_view kNames[] = {"enqueued", "begun", "ended", "instant"};
  return kNames[static_cast<int>(point)];
}

// [Note: a slot of the ring]
// The stamp is 2 i + 1 while record i is written and 2 i + 2 when it is there. A writer takes a
// slot by raising the stamp; who finds a later record there, or one still being written, gives its
// own up: that takes a writer that slept for a whole turn of the ring. A reader that finds the same
// even stamp before and after has read one record. The words are atomics, released and acquired, so
// that the second look at the stamp cannot be ahead of them.
struct alignas(64) EventLog::Slot {
  std::atomic<uint64_t> stamp{0};
  std::atomic<uint64_t> words[kWords] = {};

  void Write(uint64_t index, const Packed& packed) {
    uint64_t before = stamp.load(std::memory_order_relaxed);
    do {
      if (before % 2 == 1 || before > 2 * index) return;
    } while (!stamp.compare_exchange_weak(before, 2 * index + 1, std::memory_order_acq_rel));
    for (int k = 0; k < kWords; ++k) words[k].store(packed.words[k], std::memory_order_release);
    stamp.store(2 * index + 2, std::memory_order_release);
  }

  bool Read(uint64_t index, Packed& packed) const {
    if (stamp.load(std::memory_order_acquire) != 2 * index + 2) return false;
    for (int k = 0; k < kWords; ++k) packed.words[k] = words[k].load(std::memory_order_acquire);
    return stamp.load(std::memory_order_acquire) == 2 * index + 2;
  }
};

EventLog::EventLog(EventLogOptions options)
    : rank_(options.rank),
      clock_(options.clock != nullptr ? options.clock : SteadyNanoseconds),
      wall_offset_ns_(WallNanoseconds() - clock_()),
      names_(1) {
  if (options.capacity < 1 || options.capacity > int64_t{1} << 30) {
    ThrowInvalidArgument(
        absl::StrCat("an event log of ", options.capacity, " records; it has 1 to 2^30"),
        {.op = "EventLog"});
  }
  const uint64_t slots = std::bit_ceil(static_cast<uint64_t>(options.capacity));
  mask_ = slots - 1;
  slots_ = std::make_unique<Slot[]>(slots);
}

EventLog::~EventLog() = default;

int EventLog::Intern(std::string_view name) {
  std::lock_guard<std::mutex> lock(names_mutex_);
  const auto it = std::find(names_.begin() + 1, names_.end(), name);
  if (it != names_.end()) return static_cast<int>(it - names_.begin());
  names_.emplace_back(name);
  return static_cast<int>(names_.size()) - 1;
}

std::string EventLog::NameOf(int unit) const {
  std::lock_guard<std::mutex> lock(names_mutex_);
  const auto at = static_cast<size_t>(unit);
  return unit > 0 && at < names_.size() ? names_[at] : std::string();
}

void EventLog::Add(const Event& event) {
  const uint64_t index = next_.fetch_add(1, std::memory_order_acq_rel);
  slots_[index & mask_].Write(index, Pack(event));
}

Event EventLog::Enqueue(Event event) {
  event.point = EventPoint::kEnqueue;
  event.enqueue_ns = Now();
  Add(event);
  return event;
}

Event EventLog::Begin(Event event) {
  event.point = EventPoint::kBegin;
  event.start_ns = Now();
  Add(event);
  return event;
}

Event EventLog::End(Event event) {
  event.point = EventPoint::kEnd;
  event.end_ns = Now();
  Add(event);
  return event;
}

void EventLog::Instant(Event event) {
  event.point = EventPoint::kInstant;
  event.start_ns = event.end_ns = Now();
  Add(event);
}

std::vector<Event> EventLog::Read(uint64_t from, uint64_t to) const {
  const uint64_t end = std::min(to, position());
  const uint64_t slots = mask_ + 1;
  if (end > slots) from = std::max(from, end - slots);
  std::vector<Event> events;
  for (uint64_t index = from; index < end; ++index) {
    Packed packed;
    if (slots_[index & mask_].Read(index, packed)) events.push_back(Unpack(packed, index));
  }
  return events;
}

}  // namespace sherd
