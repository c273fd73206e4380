// What the engine costs where nothing is exchanged: a warm step of a sharded model makes no heap
// allocation that the same step without units does not make, and copies no parameter or gradient.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "sherd/autograd/optim/sgd.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"
#include "tests/support/counting_new.h"

namespace sherd::testing {
namespace {

constexpr int64_t kMicroBatches = 2;

// Heap allocations of the fifth step.
int64_t WarmStepAllocations(World& world, ShardModel& model) {
  Initialize(model, world.device(), 1);
  Sgd sgd(model.parameters());
  Accumulation accumulation(model, {.micro_batches = kMicroBatches});
  Tape tape;
  const Variable x = InputOf(world.device(), 0);
  int64_t allocations = 0;
  for (int step = 0; step < 5; ++step) {
    const int64_t before = HeapAllocations();
    auto window =
        accumulation.Next([] { return std::optional<int>(0); }, [](int) { return int64_t{1}; });
    for ([[maybe_unused]] const int batch : *window) {
      const Recording on(tape);
      window->Backward({Energy(model(x, {0, 1, 2})), 1});
    }
    window->Finish(sgd, 1e-3);
    allocations = HeapAllocations() - before;
  }
  return allocations;
}

TEST(StepCosts, UnitsAllocateNothingInAWarmStepOfOneRank) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "under AddressSanitizer small objects come from the heap";
#endif
  RunRanks(1, [](World& world) {
    ShardModel plain;
    const int64_t without = WarmStepAllocations(world, plain);
    ShardModel sharded;
    ShardAll(sharded, world.mesh());
    // A wrapped call copies its arguments, of which the model's second is a std::vector.
    EXPECT_LE(WarmStepAllocations(world, sharded), without + kMicroBatches);
  });
}

TEST(StepCosts, OneRankReadsItsShardAndWritesItsGradientShard) {
  RunRanks(1, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh());
    Initialize(model, world.device(), 1);
    world.device().allocator().ResetPeaks();
    Tape tape;
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), 0), {0, 1, 2})));
    }
    for (Unit* unit : UnitsOf(model)) {
      unit->EnterForward(unit->gathered_version());
      unit->BeginBackward(unit->gathered_version());
      for (int i = 0; i < unit->parameters(); ++i) {
        EXPECT_EQ(unit->full(i).raw(), unit->local(i).raw()) << unit->name() << " " << i;
        const Tensor held = unit->HeldGradient(i);
        if (!held.defined()) continue;
        const UnitGradient target = unit->TakeGradient(i);
        EXPECT_TRUE(target.add);
        EXPECT_EQ(target.tensor.raw(), held.raw()) << unit->name() << " " << i;
      }
      unit->EndBackward();
      unit->ExitForward(AfterScope::kReshard);
    }
    const MemoryStats stats = world.device().allocator().stats();
    EXPECT_EQ(stats[MemoryCategory::kUnsharded].peak_bytes, 0);
    EXPECT_EQ(stats[MemoryCategory::kGradient].peak_bytes, 0);
    EXPECT_GT(stats[MemoryCategory::kGradientShard].peak_bytes, 0);
  });
}

}  // namespace
}  // namespace sherd::testing
