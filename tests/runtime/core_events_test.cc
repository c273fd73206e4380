// The event stream: what is written is read, whoever writes, and nothing is torn or allocated.

#include "sherd/runtime/core/events.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "tests/support/counting_new.h"

namespace sherd::testing {
namespace {

// A clock that says 1, 2, 3, ...
std::atomic<int64_t> g_ticks{0};
int64_t Tick() { return ++g_ticks; }

EventLogOptions Ticking(int64_t capacity = 64) {
  g_ticks = 0;
  return {.rank = 3, .capacity = capacity, .clock = Tick};
}

Event Numbered(int64_t n) {
  return {.kind = EventKind::kCollective,
          .point = EventPoint::kEnd,
          .lane = EventLane::kReduce,
          .unit = static_cast<int>(n % 1000),
          .sequence = n,
          .bytes = 3 * n + 1,
          .enqueue_ns = n + 1,
          .start_ns = -n,
          .end_ns = n << 20};
}

bool IsNumbered(const Event& e) {
  const Event want = Numbered(e.sequence);
  return e.kind == want.kind && e.point == want.point && e.lane == want.lane &&
         e.unit == want.unit && e.bytes == want.bytes && e.enqueue_ns == want.enqueue_ns &&
         e.start_ns == want.start_ns && e.end_ns == want.end_ns;
}

TEST(EventLogTest, CollectiveIsAskedForBegunAndEnded) {
  EventLog log(Ticking());
  const int unit = log.Intern("block0");
  const Event asked = log.Enqueue({.kind = EventKind::kCollective,
                                   .lane = EventLane::kGather,
                                   .phase = EventPhase::kBackward,
                                   .op = EventOp::kAllGather,
                                   .unit = unit,
                                   .sequence = 7,
                                   .bytes = int64_t{1} << 40});
  std::thread([&] { const EventSpan running(&log, asked); }).join();
  const std::vector<Event> events = log.Read();
  ASSERT_EQ(events.size(), 3u);
  const EventPoint points[] = {EventPoint::kEnqueue, EventPoint::kBegin, EventPoint::kEnd};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events[i].index, i);
    EXPECT_EQ(events[i].point, points[i]);
    EXPECT_EQ(events[i].kind, EventKind::kCollective);
    EXPECT_EQ(events[i].lane, EventLane::kGather);
    EXPECT_EQ(events[i].phase, EventPhase::kBackward);
    EXPECT_EQ(events[i].op, EventOp::kAllGather);
    EXPECT_EQ(events[i].unit, unit);
    EXPECT_EQ(events[i].sequence, 7);
    EXPECT_EQ(events[i].bytes, int64_t{1} << 40);
    EXPECT_EQ(events[i].enqueue_ns - events[0].enqueue_ns, 0);
    EXPECT_EQ(events[i].start_ns, i < 1 ? 0 : events[0].enqueue_ns + 1);
    EXPECT_EQ(events[i].end_ns, i < 2 ? 0 : events[0].enqueue_ns + 2);
  }
  EXPECT_EQ(log.rank(), 3);
}

TEST(EventLogTest, InstantBeginsAndEndsAtOnce) {
  EventLog log(Ticking());
  log.Instant({.kind = EventKind::kReshard, .unit = 1});
  const std::vector<Event> events = log.Read();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].point, EventPoint::kInstant);
  EXPECT_GT(events[0].start_ns, 0);
  EXPECT_EQ(events[0].start_ns, events[0].end_ns);
}

TEST(EventLogTest, SpanEndsWhenAnExceptionPasses) {
  EventLog log(Ticking());
  try {
    const EventSpan span(&log, {.kind = EventKind::kScope});
    throw std::runtime_error("the block broke");
  } catch (const std::runtime_error&) {
  }
  ASSERT_EQ(log.Read().size(), 2u);
  EXPECT_EQ(log.Read()[1].point, EventPoint::kEnd);
}

TEST(EventLogTest, NullLogWritesNothing) {
  const int64_t before = g_ticks;
  { const EventSpan span(nullptr, {.kind = EventKind::kScope}); }
  EXPECT_EQ(g_ticks, before);
}

TEST(EventLogTest, RingKeepsTheLatest) {
  EventLog log({.capacity = 5});
  EXPECT_EQ(log.capacity(), 8) << "a power of 2";
  for (int64_t n = 0; n < 21; ++n) log.Add(Numbered(n));
  EXPECT_EQ(log.position(), 21u);
  std::vector<Event> events = log.Read();
  ASSERT_EQ(events.size(), 8u);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].sequence, static_cast<int64_t>(13 + i));
    EXPECT_EQ(events[i].index, 13 + i);
    EXPECT_TRUE(IsNumbered(events[i]));
  }
  events = log.Read(15, 17);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].sequence, 15);
  EXPECT_EQ(events[1].sequence, 16);
  EXPECT_TRUE(log.Read(21).empty());
}

TEST(EventLogTest, NamesAreOnesAndTheSameForTheSame) {
  EventLog log;
  const int a = log.Intern("model.blocks.0");
  const int b = log.Intern("model.blocks.1");
  EXPECT_GE(a, 1);
  EXPECT_NE(a, b);
  EXPECT_EQ(log.Intern("model.blocks.0"), a);
  EXPECT_EQ(log.NameOf(b), "model.blocks.1");
  EXPECT_EQ(log.NameOf(0), "");
  EXPECT_EQ(log.NameOf(99), "");
  EXPECT_EQ(log.NameOf(-1), "");
}

TEST(EventLogTest, WritingAllocatesNothing) {
  EventLog log({.capacity = 16});
  const Event event = Numbered(1);
  const int64_t before = HeapAllocations();
  for (int i = 0; i < 100; ++i) {
    const Event asked = log.Enqueue(event);
    const EventSpan span(&log, asked);
    log.Instant(event);
  }
  EXPECT_EQ(HeapAllocations(), before);
}

// A ring so small that writers overtake each other all the time: what can be read is whole, and in
// the order of its places.
TEST(EventLogTest, RecordsAreWholeHoweverManyWrite) {
  constexpr int kWriters = 3;
  constexpr int64_t kEach = 300000;
  EventLog log({.capacity = 1});
  std::atomic<int> running{kWriters};
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int64_t n = 0; n < kEach; ++n) log.Add(Numbered(n * kWriters + w));
      --running;
    });
  }
  int64_t torn = 0;
  int64_t read = 0;
  do {
    uint64_t last = 0;
    for (const Event& e : log.Read()) {
      torn += IsNumbered(e) ? 0 : 1;
      EXPECT_GE(e.index, last);
      last = e.index;
      ++read;
    }
  } while (running > 0);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(log.position(), static_cast<uint64_t>(kWriters * kEach));
  for (const Event& e : log.Read()) EXPECT_TRUE(IsNumbered(e));
}

TEST(EventLogTest, EveryRecordIsThereWhenTheRingIsLargeEnough) {
  constexpr int kWriters = 3;
  constexpr int64_t kEach = 1000;
  EventLog log({.capacity = kWriters * kEach});
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int64_t n = 0; n < kEach; ++n) log.Add(Numbered(n * kWriters + w));
    });
  }
  for (std::thread& writer : writers) writer.join();
  std::vector<int> seen(kWriters * kEach);
  for (const Event& e : log.Read()) ++seen[static_cast<size_t>(e.sequence)];
  for (int count : seen) ASSERT_EQ(count, 1);
}

TEST(EventLogTest, WallOffsetTurnsTimesIntoThoseOfTheCalendar) {
  EventLog log;
  const int64_t wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  EXPECT_LT(std::abs(log.Now() + log.wall_offset_ns() - wall), int64_t{60} * 1000000000);
}

TEST(EventLogTest, RefusesImpossibleSizes) {
  EXPECT_THROW(EventLog({.capacity = 0}), Error);
  EXPECT_THROW(EventLog({.capacity = int64_t{1} << 40}), Error);
}

}  // namespace
}  // namespace sherd::testing
