// Figures of a step, from records by hand and from a real allocator.

#include "sherd/shard/step_stats.h"

#include <gtest/gtest.h>

#include <string>

#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/events.h"

namespace sherd::testing {
namespace {

Event Ended(EventKind kind, EventOp op, int64_t start, int64_t end, int64_t bytes = 0) {
  return {.kind = kind,
          .point = EventPoint::kEnd,
          .op = op,
          .bytes = bytes,
          .start_ns = start,
          .end_ns = end};
}

TEST(StepStatsTest, SumsByCollectiveBetweenTwoPlaces) {
  EventLog log;
  log.Add(Ended(EventKind::kCollective, EventOp::kAllGather, 1, 5, 1000));  // before
  const uint64_t from = log.position();
  log.Add(Ended(EventKind::kCollective, EventOp::kAllGather, 10, 30, 64));
  log.Add(Ended(EventKind::kCollective, EventOp::kReduceScatter, 20, 50, 128));
  log.Add(Ended(EventKind::kCollective, EventOp::kAllGather, 40, 45, 64));
  log.Add({.kind = EventKind::kCollective,
           .point = EventPoint::kBegin,
           .op = EventOp::kAllGather,
           .bytes = 4,
           .start_ns = 46});  // ends later
  const uint64_t to = log.position();
  log.Add(Ended(EventKind::kCollective, EventOp::kAllGather, 60, 90, 2000));  // after
  const StepStats stats = SummarizeEvents(log, from, to);
  EXPECT_EQ(stats[EventOp::kAllGather].count, 2);
  EXPECT_EQ(stats[EventOp::kAllGather].bytes, 128);
  EXPECT_EQ(stats[EventOp::kAllGather].busy_ns, 25);
  EXPECT_EQ(stats[EventOp::kReduceScatter].count, 1);
  EXPECT_EQ(stats[EventOp::kReduceScatter].bytes, 128);
  EXPECT_EQ(stats[EventOp::kReduceScatter].busy_ns, 30);
  EXPECT_EQ(stats[EventOp::kBarrier].count, 0);
  EXPECT_EQ(stats.wall_ns, 40);
  EXPECT_TRUE(stats.complete);
}

TEST(StepStatsTest, WaitsAreExposedOnce) {
  EventLog log;
  log.Add(Ended(EventKind::kWait, EventOp::kAllGather, 10, 25));
  log.Add(Ended(EventKind::kWait, EventOp::kReduceScatter, 32, 35));  // within the next
  log.Add(Ended(EventKind::kWait, EventOp::kReduceScatter, 30, 40));
  log.Add(Ended(EventKind::kWait, EventOp::kAllGather, 50, 51));
  log.Add(Ended(EventKind::kScope, EventOp::kNone, 5, 60));
  const StepStats stats = SummarizeEvents(log, 0, log.position());
  EXPECT_EQ(stats.exposed_gather_ns, 16);
  EXPECT_EQ(stats.exposed_other_ns, 10);
}

TEST(StepStatsTest, SaysWhenTheLogWasTooSmall) {
  EventLog log({.capacity = 4});
  for (int i = 0; i < 6; ++i)
    log.Add(Ended(EventKind::kCollective, EventOp::kAllReduce, i, i + 1, 8));
  EXPECT_FALSE(SummarizeEvents(log, 0, 6).complete);
  EXPECT_EQ(SummarizeEvents(log, 0, 6)[EventOp::kAllReduce].count, 4);
  EXPECT_TRUE(SummarizeEvents(log, 2, 6).complete);
}

TEST(StepStatsTest, MeterTakesStepAfterStepWithPeaks) {
  EventLog log;
  CachingAllocator allocator;
  void* kept = allocator.Allocate(640, MemoryCategory::kParameterShard);
  const auto touch = [&](int64_t bytes) {
    allocator.Free(allocator.Allocate(bytes, MemoryCategory::kUnsharded), bytes,
                   MemoryCategory::kUnsharded);
  };
  touch(6400);  // before the first step
  StepMeter meter(log, allocator);
  log.Add(Ended(EventKind::kCollective, EventOp::kAllGather, 1, 2, 100));
  touch(128);
  StepStats stats = meter.Take();
  EXPECT_EQ(stats[EventOp::kAllGather].bytes, 100);
  EXPECT_EQ(stats.memory[MemoryCategory::kUnsharded].peak_bytes, 128);
  EXPECT_EQ(stats.memory[MemoryCategory::kParameterShard].peak_bytes, 640);
  EXPECT_GT(stats.wall_ns, 0);
  touch(64);
  stats = meter.Take();
  EXPECT_EQ(stats[EventOp::kAllGather].count, 0);
  EXPECT_EQ(stats.memory[MemoryCategory::kUnsharded].peak_bytes, 64);
  EXPECT_EQ(stats.memory.total.peak_bytes, 704);
  allocator.Free(kept, 640, MemoryCategory::kParameterShard);
}

TEST(StepStatsTest, TableNamesWhatThereWas) {
  EventLog log;
  log.Add(Ended(EventKind::kCollective, EventOp::kReduceScatter, 1, 2500001, 12345));
  const std::string text = SummarizeEvents(log, 0, 1).ToString();
  EXPECT_NE(text.find("reduce_scatter"), std::string::npos) << text;
  EXPECT_NE(text.find("12345"), std::string::npos) << text;
  EXPECT_NE(text.find("2.500"), std::string::npos) << text;
  EXPECT_EQ(text.find("all_gather"), std::string::npos) << text;
}

}  // namespace
}  // namespace sherd::testing
