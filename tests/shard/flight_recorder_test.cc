// What a rank that hangs says of itself, by hand.

#include "sherd/shard/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "sherd/runtime/core/events.h"

namespace sherd::testing {
namespace {

std::atomic<int64_t> g_now{0};
int64_t Now() { return g_now; }
void At(double seconds) { g_now = static_cast<int64_t>(seconds * 1e9); }

TEST(FlightRecorderTest, TellsWhatIsInFlightAndWhatWasLastDone) {
  EventLog log({.rank = 3, .clock = Now});
  const int unit = log.Intern("block7");
  const Event gather = {.kind = EventKind::kCollective,
                        .lane = EventLane::kGather,
                        .phase = EventPhase::kForward,
                        .op = EventOp::kAllGather,
                        .unit = unit,
                        .bytes = 4096};
  Event first = gather;
  first.sequence = 1;
  Event second = gather;
  second.sequence = 2;
  Event third = gather;
  third.sequence = 3;
  At(0.5);
  log.End(log.Begin(gather));  // before the one that is done last
  At(1);
  first = log.Enqueue(first);
  At(2);
  first = log.Begin(first);
  At(2.5);
  log.End(first);
  second = log.Enqueue(second);
  At(3);
  log.Begin(second);
  log.Enqueue(third);
  At(4);
  log.Begin({.kind = EventKind::kWait,
             .phase = EventPhase::kForward,
             .op = EventOp::kAllGather,
             .unit = unit});
  At(14);
  EXPECT_EQ(FlightRecord(log, 2), R"(rank 3: 2 running, 1 queued
  running  gather   all_gather block7 #2, 4096 bytes, forward: since 11.000000 s
  running  compute  wait all_gather block7, forward: since 10.000000 s
  queued   gather   all_gather block7 #3, 4096 bytes, forward: since 11.000000 s
  last     gather   all_gather block7 #1, 4096 bytes, forward: 11.500000 s ago, took 0.500000 s
latest 2 of 9 records
    -11.000000 s enqueued gather   all_gather block7 #3, 4096 bytes, forward
    -10.000000 s begun    compute  wait all_gather block7, forward
)");
}

TEST(FlightRecorderTest, EmptyLogSaysSo) {
  EXPECT_EQ(FlightRecord(EventLog({.rank = 1})),
            "rank 1: 0 running, 0 queued\nlatest 0 of 0 records\n");
}

TEST(FlightRecorderTest, AsksForNoMoreThanThereIs) {
  EventLog log;
  log.Instant({.kind = EventKind::kReshard});
  EXPECT_NE(FlightRecord(log, 1000).find("latest 1 of 1"), std::string::npos);
  EXPECT_NE(FlightRecord(log, -1).find("latest 0 of 1"), std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
