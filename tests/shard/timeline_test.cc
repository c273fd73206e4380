// Records become events again, whatever of them the ring has lost.

#include "sherd/shard/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "sherd/runtime/core/events.h"

namespace sherd::testing {
namespace {

std::atomic<int64_t> g_now{0};

// Time 10, 20, 30, ...: one tick for each record.
EventLogOptions Ticking(int64_t capacity = 64) {
  g_now = 0;
  return {.capacity = capacity, .clock = [] { return g_now += 10; }};
}

Event Gather(int unit, int64_t sequence) {
  return {.kind = EventKind::kCollective,
          .lane = EventLane::kGather,
          .op = EventOp::kAllGather,
          .unit = unit,
          .sequence = sequence};
}

Event Scope(int unit, EventPhase phase = EventPhase::kForward) {
  return {.kind = EventKind::kScope, .phase = phase, .unit = unit};
}

TEST(TimelineTest, EveryEventIsWhereItHasGotTo) {
  EventLog log(Ticking());
  const Event first = log.Enqueue(Gather(1, 1));
  const Event second = log.Enqueue(Gather(1, 2));
  const Event third = log.Enqueue(Gather(2, 1));
  log.End(log.Begin(first));
  log.Begin(second);
  log.Instant({.kind = EventKind::kReshard, .unit = 2});
  const Timeline timeline = MakeTimeline(log.Read());
  ASSERT_EQ(timeline.spans.size(), 2u);
  EXPECT_EQ(timeline.spans[0].sequence, 1);
  EXPECT_EQ(timeline.spans[0].enqueue_ns, first.enqueue_ns);
  EXPECT_EQ(timeline.spans[0].start_ns, third.enqueue_ns + 10);
  EXPECT_EQ(timeline.spans[0].end_ns, third.enqueue_ns + 20);
  EXPECT_EQ(timeline.spans[1].kind, EventKind::kReshard);
  ASSERT_EQ(timeline.running.size(), 1u);
  EXPECT_EQ(timeline.running[0].sequence, 2);
  ASSERT_EQ(timeline.queued.size(), 1u);
  EXPECT_EQ(timeline.queued[0].unit, 2);
}

// Scopes open in one function and close in another, and the same unit may nest in itself.
TEST(TimelineTest, EndWithoutTimesBelongsToTheLatestBegunAlike) {
  EventLog log(Ticking());
  const Event outer = log.Begin(Scope(1));
  const Event inner = log.Begin(Scope(1));
  const Event other = log.Begin(Scope(2));
  log.End(Scope(1));
  log.End(Scope(2));
  log.End(Scope(1));
  const Timeline timeline = MakeTimeline(log.Read());
  EXPECT_TRUE(timeline.running.empty());
  ASSERT_EQ(timeline.spans.size(), 3u);
  EXPECT_EQ(timeline.spans[0].start_ns, outer.start_ns);
  EXPECT_EQ(timeline.spans[0].end_ns, other.start_ns + 30);
  EXPECT_EQ(timeline.spans[1].start_ns, inner.start_ns);
  EXPECT_EQ(timeline.spans[1].end_ns, other.start_ns + 10);
  EXPECT_EQ(timeline.spans[2].unit, 2);
  EXPECT_EQ(timeline.spans[2].start_ns, other.start_ns);
}

TEST(TimelineTest, EndTellsOpsApart) {
  EventLog log(Ticking());
  const Event wait = {.kind = EventKind::kWait, .unit = 1};
  Event gather = wait;
  gather.op = EventOp::kAllGather;
  Event reduce = wait;
  reduce.op = EventOp::kReduceScatter;
  const Event begun = log.Begin(gather);
  log.Begin(reduce);
  log.End(gather);
  const Timeline timeline = MakeTimeline(log.Read());
  ASSERT_EQ(timeline.spans.size(), 1u);
  EXPECT_EQ(timeline.spans[0].start_ns, begun.start_ns);
}

TEST(TimelineTest, EndTellsPhasesApart) {
  EventLog log(Ticking());
  log.Begin(Scope(1, EventPhase::kBackward));
  log.End(Scope(1, EventPhase::kForward));
  const Timeline timeline = MakeTimeline(log.Read());
  EXPECT_TRUE(timeline.spans.empty());
  EXPECT_EQ(timeline.running.size(), 1u);
}

TEST(TimelineTest, WhatTheRingLostTheBeginningOf) {
  EventLog log(Ticking(2));
  const Event scope = log.Begin(Scope(1));
  const Event gather = log.Begin(log.Enqueue(Gather(1, 1)));
  log.End(gather);
  log.End(Scope(1));  // now the ring has the last two
  const Timeline timeline = MakeTimeline(log.Read());
  ASSERT_EQ(timeline.spans.size(), 1u) << "nobody knows when the scope began";
  EXPECT_EQ(timeline.spans[0].start_ns, gather.start_ns);
  EXPECT_TRUE(timeline.running.empty());
  EXPECT_TRUE(timeline.queued.empty());
  EXPECT_GT(scope.start_ns, 0);
}

TEST(TimelineTest, TitlesByKind) {
  EventLog log;
  const int unit = log.Intern("block0");
  EXPECT_EQ(TitleOf(log, Scope(unit, EventPhase::kBackward)), "backward block0");
  EXPECT_EQ(TitleOf(log, Gather(unit, 1)), "all_gather block0");
  EXPECT_EQ(TitleOf(log, {.kind = EventKind::kWait, .op = EventOp::kReduceScatter, .unit = unit}),
            "wait reduce_scatter block0");
  EXPECT_EQ(TitleOf(log, {.kind = EventKind::kReshard, .unit = unit}), "reshard block0");
  EXPECT_EQ(TitleOf(log, {.kind = EventKind::kUpdate}), "update");
  EXPECT_EQ(TitleOf(log, {.kind = EventKind::kStep, .sequence = 12}), "step 12");
}

TEST(TimelineTest, OverlapsAreFoundWithinALaneOnly) {
  EventLog log;
  const auto span = [&](EventLane lane, int64_t start, int64_t end) {
    log.Add({.point = EventPoint::kEnd, .lane = lane, .start_ns = start, .end_ns = end});
  };
  const auto overlap = [&] { return FindOverlap(log, MakeTimeline(log.Read())); };
  span(EventLane::kCompute, 10, 20);  // within the next, at either end
  span(EventLane::kCompute, 10, 100);
  span(EventLane::kCompute, 90, 100);
  span(EventLane::kCompute, 100, 120);  // after
  span(EventLane::kGather, 50, 150);    // on another lane
  EXPECT_EQ(overlap(), "");
  span(EventLane::kCompute, 15, 25);
  EXPECT_NE(overlap().find("[10, 20) overlaps"), std::string::npos) << overlap();
}

}  // namespace
}  // namespace sherd::testing
