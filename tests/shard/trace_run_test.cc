// The events of real steps: lanes nest, nothing stays open, and figures are those of the plan.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/events.h"
#include "sherd/shard/plan.h"
#include "sherd/shard/plan_model.h"
#include "sherd/shard/step_stats.h"
#include "sherd/shard/timeline.h"
#include "sherd/shard/trace.h"
#include "tests/shard/json_reader.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kMicroBatches = 2;

Plan PlanOf(const ShardModel& model) {
  std::vector<const Module*> blocks;
  for (const auto& block : model.blocks) blocks.push_back(block.get());
  return MakePlan(PlanModelOf(model, blocks),
                  {.shard_ranks = kRanks, .micro_batches = kMicroBatches});
}

// Runs `steps` steps on each rank with its log, and compares the last with the plan.
void RunWithEvents(const std::vector<std::unique_ptr<EventLog>>& logs, int steps) {
  RunRanks(kRanks, [&](World& world) {
    ShardModel model;
    EventLog& log = *logs[static_cast<size_t>(world.rank())];
    const Plan plan = PlanOf(model);
    ShardAll(model, world.mesh());
    ContextOf(model)->SetEvents(&log);
    Initialize(model, world.device(), 1);
    WindowTrainer trainer(world, model, kMicroBatches);
    for (int step = 0; step + 1 < steps; ++step) trainer.Step();
    StepMeter meter(log, world.device().allocator());
    trainer.Step();
    const StepStats stats = meter.Take();
    EXPECT_TRUE(stats.complete);
    for (EventOp op : {EventOp::kAllGather, EventOp::kReduceScatter}) {
      EXPECT_EQ(stats[op].count, plan.forward[op].count + plan.backward[op].count) << NameOf(op);
      EXPECT_EQ(stats[op].bytes, plan.forward[op].bytes + plan.backward[op].bytes) << NameOf(op);
    }
    EXPECT_EQ(stats.memory[MemoryCategory::kUnsharded].peak_bytes,
              plan.peak_bytes(MemoryCategory::kUnsharded));
  });
}

std::vector<std::unique_ptr<EventLog>> MakeLogs() {
  std::vector<std::unique_ptr<EventLog>> logs;
  for (int rank = 0; rank < kRanks; ++rank)
    logs.push_back(std::make_unique<EventLog>(EventLogOptions{.rank = rank}));
  return logs;
}

TEST(TraceRunTest, LanesNestNothingStaysOpenAndFiguresAreThePlans) {
  const auto logs = MakeLogs();
  RunWithEvents(logs, 3);
  for (const auto& log : logs) {
    const Timeline timeline = MakeTimeline(log->Read());
    EXPECT_EQ(FindOverlap(*log, timeline), "");
    EXPECT_TRUE(timeline.queued.empty());
    ASSERT_TRUE(timeline.running.empty()) << TitleOf(*log, timeline.running[0]);
  }
}

// Every scope of a call and every step is there, on both ranks, and the file is JSON.
TEST(TraceRunTest, TraceHoldsTheStepsOfAllRanks) {
  constexpr int kSteps = 2;
  const auto logs = MakeLogs();
  RunWithEvents(logs, kSteps);
  std::ostringstream out;
  const EventLog* all[] = {logs[0].get(), logs[1].get()};
  WriteChromeTrace(all, out);
  const Json trace = JsonReader(out.str()).Read();
  std::map<std::string, int> spans;
  for (const Json& event : trace["traceEvents"].items) {
    if (event["ph"].text == "X") ++spans[event["name"].text];
  }
  for (const char* title : {"forward block0", "backward block0", "forward block2"})
    EXPECT_EQ(spans[title], kRanks * kSteps * kMicroBatches) << title;
  EXPECT_EQ(spans["all_gather block1"], kRanks * kSteps * kMicroBatches * 2);
  EXPECT_EQ(spans["reduce_scatter block1"], kRanks * kSteps * kMicroBatches);
  EXPECT_EQ(spans["step 1"], kRanks);
  EXPECT_EQ(spans["step 2"], kRanks);
  EXPECT_EQ(spans["update"], kRanks * kSteps);
}

}  // namespace
}  // namespace sherd::testing
