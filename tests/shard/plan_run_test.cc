// What a plan says is what a run holds and sends: the counted peaks of every rank.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/runtime/comm/forwarding_group.h"
#include "sherd/runtime/comm/recording_group.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/shard/plan.h"
#include "sherd/shard/plan_model.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int64_t kMicroBatches = 2;

// Holds a rank's reductions back until as many gradient buffers are held as the plan says there may
// be at once, so that the peak does not depend on who is faster.
struct Gate {
  std::atomic<bool> closed{false};
  std::atomic<const CachingAllocator*> allocator{nullptr};
  std::atomic<int64_t> planned_bytes{0};

  void Pass() const {
    // The limit is for plans that are wrong: nothing would be released then.
    for (int i = 0; i < 2000 && closed; ++i) {
      const MemoryStats stats = allocator.load()->stats();
      if (stats[MemoryCategory::kGradient].current_bytes >= planned_bytes) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

// At the gate are the reductions over the shard axis, the first of a call: what they read is freed
// before those over the other axis, which have nothing to wait for.
class GatedGroup final : public ForwardingGroup {
 public:
  GatedGroup(std::shared_ptr<ProcessGroup> inner, const Gate& gate, const std::string& name = "")
      : ForwardingGroup(std::move(inner)), gate_(gate), gated_(name == "reduce") {}

 protected:
  void Before(const CollectiveCall& call) override {
    if (gated_ && call.op == CollectiveOp::kReduceScatter) gate_.Pass();
  }
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string& name) override {
    return std::make_unique<GatedGroup>(std::move(inner), gate_, name);
  }

 private:
  const Gate& gate_;
  const bool gated_;
};

// What a rank of the test has beside its World.
struct RankTools {
  Gate gate;
  std::shared_ptr<CollectiveLog> log = std::make_shared<CollectiveLog>();
};

struct RunCase {
  int shard_ranks = 1;
  int replicate_ranks = 1;
  int prefetch = 1;
  bool reshard = true;
  Stage stage = kZero3;

  int ranks() const { return shard_ranks * replicate_ranks; }
  FullyShardOptions options() const {
    FullyShardOptions options;
    options.reshard_after_forward = reshard;
    options.prefetch = prefetch;
    options.stage = stage;
    return options;
  }
};

Plan PlanOf(const ShardModel& model, const RunCase& run) {
  std::vector<const Module*> blocks;
  for (const auto& block : model.blocks) blocks.push_back(block.get());
  PlanModel plan = PlanModelOf(
      model, blocks,
      {.reshard_after_forward = run.reshard, .prefetch = run.prefetch, .stage = run.stage});
  plan.root.reshard_after_forward = std::nullopt;
  plan.root.prefetch = 1;
  return MakePlan(plan, {.shard_ranks = run.shard_ranks,
                         .replicate_ranks = run.replicate_ranks,
                         .micro_batches = kMicroBatches});
}

// What a reduction that was finished early has given back before the plan says so: the sums of one
// unit at the gradients' level, where finishing moves them to another.
int64_t EarlyBytes(const ShardModel& model) {
  int64_t most = 0;
  for (const Unit* unit : UnitsOf(model)) {
    const UnitAxes& axes = unit->axes();
    if (axes.gradient_level == axes.levels()) continue;
    const int64_t bytes = unit->layout().full_bytes() / axes.Pieces(0, axes.gradient_level);
    most = std::max(most, (bytes + 63) / 64 * 64);
  }
  return most;
}

// Every category; and the total, on top of which comes at most what a plan does not count.
void ExpectAsPlanned(const MemoryStats& stats, const Plan& plan, int64_t early) {
  for (MemoryCategory category :
       {MemoryCategory::kParameterShard, MemoryCategory::kUnsharded, MemoryCategory::kGradient,
        MemoryCategory::kGradientShard, MemoryCategory::kOptimizer}) {
    const auto planned = static_cast<double>(plan.peak_bytes(category));
    const auto peak = static_cast<double>(stats[category].peak_bytes);
    const bool sums = category == MemoryCategory::kGradientShard;
    EXPECT_LE(peak, 1.01 * planned) << NameOf(category);
    EXPECT_GE(peak, 0.99 * planned - static_cast<double>(sums ? early : 0)) << NameOf(category);
  }
  const auto total = static_cast<double>(stats.total.peak_bytes);
  const auto planned = static_cast<double>(plan.total_peak_bytes());
  int64_t others = 0;
  for (MemoryCategory category : {MemoryCategory::kActivation, MemoryCategory::kStaging,
                                  MemoryCategory::kWorkspace, MemoryCategory::kBuffer})
    others += stats[category].peak_bytes;
  EXPECT_GE(total, 0.99 * planned - static_cast<double>(early));
  EXPECT_LE(total, 1.01 * planned + static_cast<double>(others));
}

void ExpectAsPlanned(const CollectiveLog& log, const RunCase& run, const Plan& plan) {
  const auto all = [&](EventOp op) {
    PlanCollectives sum = plan.forward[op];
    for (const PlanPhase* phase : {&plan.backward, &plan.step}) {
      sum.count += (*phase)[op].count;
      sum.bytes += (*phase)[op].bytes;
    }
    return sum;
  };
  EXPECT_EQ(log.count(CollectiveOp::kAllGather), all(EventOp::kAllGather).count);
  EXPECT_EQ(log.count(CollectiveOp::kReduceScatter), all(EventOp::kReduceScatter).count);
  EXPECT_EQ(log.count(CollectiveOp::kAllReduce), all(EventOp::kAllReduce).count);
  if (run.replicate_ranks > 1) return;
  // A log counts the bytes of a rank's piece.
  EXPECT_EQ(log.bytes(CollectiveOp::kAllGather) * run.ranks(), all(EventOp::kAllGather).bytes);
  EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter) * run.ranks(),
            all(EventOp::kReduceScatter).bytes);
}

// The third step, so that prefetch knows the order.
void ExpectRunsAsPlanned(const RunCase& run) {
  std::vector<RankTools> tools(static_cast<size_t>(run.ranks()));
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    RankTools& own = tools[static_cast<size_t>(group->rank())];
    return std::make_shared<GatedGroup>(MakeRecordingGroup(std::move(group), own.log), own.gate);
  };
  RunRanks(
      run.ranks(),
      [&](World& world) {
        ShardModel model;
        const Plan plan = PlanOf(model, run);
        Gate& gate = tools[static_cast<size_t>(world.rank())].gate;
        CollectiveLog& log = *tools[static_cast<size_t>(world.rank())].log;
        gate.allocator = &world.device().allocator();
        gate.planned_bytes = plan.peak_bytes(MemoryCategory::kGradient);
        const Mesh mesh = world.MakeMesh(run.shard_ranks);
        for (auto& block : model.blocks) FullyShard(*block, mesh, run.options());
        FullyShard(model, mesh, {.stage = run.stage});
        Initialize(model, world.device(), 1);
        const auto close = [&] { gate.closed = true; };
        const auto open = [&] {
          gate.closed = false;  // the last reductions have no buffer after them to wait for
          ContextOf(model)->WaitReductions(0);
        };
        WindowTrainer trainer(world, model, kMicroBatches,
                              {.before_backward = close, .after_backward = open});
        for (int step = 0; step < 2; ++step) trainer.Step();
        log.Clear();
        world.device().allocator().ResetPeaks();
        trainer.Step();
        ExpectAsPlanned(world.device().allocator().stats(), plan, EarlyBytes(model));
        ExpectAsPlanned(log, run, plan);
      },
      options);
}

void ExpectAllRunAsPlanned(const std::vector<RunCase>& runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "case " << i);
    ExpectRunsAsPlanned(runs[i]);
  }
}

TEST(PlanRunTest, PeaksAndCollectivesAreThoseOfTheRun) {
  ExpectAllRunAsPlanned({{.shard_ranks = 1},
                         {.shard_ranks = 2},
                         {.shard_ranks = 3, .prefetch = 0},
                         {.shard_ranks = 2, .prefetch = 2},
                         {.shard_ranks = 3, .reshard = false}});
}

TEST(PlanRunTest, EveryStageHoldsAndSendsWhatIsPlanned) {
  ExpectAllRunAsPlanned({{.shard_ranks = 2, .stage = kDataParallel},
                         {.shard_ranks = 2, .stage = kZero1},
                         {.shard_ranks = 2, .stage = kZero2},
                         {.shard_ranks = 2, .replicate_ranks = 2, .stage = kZero3},
                         {.shard_ranks = 2, .replicate_ranks = 2, .stage = kHybridOptimizer},
                         {.shard_ranks = 2, .replicate_ranks = 2, .stage = kZero3Everywhere}});
}

}  // namespace
}  // namespace sherd::testing
