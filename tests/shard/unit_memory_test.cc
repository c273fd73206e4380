// What a sharded model holds, and that it gives everything back.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "sherd/runtime/comm/delayed_group.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

TEST(UnitMemory, AllIsReturnedWhenTheModelIsDeleted) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      const auto held = [&] { return world.device().allocator().stats().total.current_bytes; };
      const int64_t before = held();
      Parameter kept;
      {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums({.reshard_after_forward = false}));
        Initialize(model, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 1})));
        tape.Reset();
        model(InputOf(world.device(), world.rank()), {2});
        kept = model.head.weight();
      }
      EXPECT_GT(kept.local().numel(), 0) << "a handle keeps its piece";
      kept = Parameter();
      EXPECT_EQ(held(), before);
    });
  }
}

TEST(UnitMemory, StepHoldsShardsAndGradientShardsOnlyHoweverSlowTheReductions) {
  RankOptions options;
  options.wrap_group = [](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return MakeDelayedGroup(std::move(group), {.max_delay = absl::Milliseconds(20)});
  };
  RunRanks(
      2,
      [](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums());
        Initialize(model, world.device(), 1);
        Tape tape;
        {
          const Recording on(tape);
          tape.Backward(
              Energy(model(InputOf(world.device(), world.rank()), {0, 1, 2, 0, 1, 2, 0})));
          tape.Reset();
        }
        GradientsOf(model, nullptr);
        int64_t shards = 0;
        int64_t largest = 0;
        const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
        for (const Unit* unit : UnitsOf(model)) {
          shards += rounded(unit->layout().shard_bytes());
          largest = std::max(largest, rounded(unit->layout().full_bytes()));
        }
        const MemoryStats stats = world.device().allocator().stats();
        EXPECT_EQ(stats[MemoryCategory::kParameterShard].current_bytes, shards);
        EXPECT_EQ(stats[MemoryCategory::kGradientShard].current_bytes, shards);
        EXPECT_EQ(stats[MemoryCategory::kUnsharded].current_bytes, 0);
        EXPECT_EQ(stats[MemoryCategory::kGradient].current_bytes, 0);
        // The root beside one block; of gradients one more block whose reduction is in flight.
        const int64_t root = rounded(UnitOf(model)->layout().full_bytes());
        EXPECT_EQ(stats[MemoryCategory::kUnsharded].peak_bytes, root + largest);
        EXPECT_LE(stats[MemoryCategory::kGradient].peak_bytes, root + 2 * largest);
      },
      options);
}

}  // namespace
}  // namespace sherd::testing
