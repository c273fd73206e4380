// Units that no root is above: the end of the whole backward is theirs too.

#include <gtest/gtest.h>

#include <vector>

#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

// Its blocks are units, it is none; its head is frozen.
void ShardBlocks(ShardModel& model, const Mesh& mesh, const FullyShardOptions& options,
                 bool checkpoint = false) {
  model.head.weight().set_requires_grad(false);
  for (auto& block : model.blocks) {
    FullyShard(*block, mesh, Sums(options));
    if (checkpoint) Checkpoint(*block);
  }
}

Variable LossOf(ShardModel& model, const Device& device, int rank) {
  return Energy(model(InputOf(device, rank), {0, 1, 2, 0, 1, 0}));
}

Whole Reference(int ranks) {
  Whole want = PlainGradients(ranks, LossOf);
  want.erase("head.weight");
  return want;
}

TEST(Siblings, AreReducedOnceAndFreedWhenTheWholeBackwardHasEnded) {
  for (int ranks : {1, 2, 3}) {
    const Whole want = Reference(ranks);
    RunRanks(ranks, [&](World& world) {
      ShardModel model;
      ShardBlocks(model, world.mesh(), {.reshard_after_forward = false, .reduce_once = true});
      Initialize(model, world.device(), 1);
      for (int64_t step = 1; step <= 2; ++step) {
        Tape tape;
        const Recording on(tape);
        const Variable loss = LossOf(model, world.device(), world.rank());
        // Called, and not in the loss: gathered by its forward for a backward that never comes.
        model.block(1)(InputOf(world.device(), world.rank()));
        tape.Backward(loss);
        ExpectClose(GradientsOf(model, &world.group()), want);
        for (const Unit* unit : UnitsOf(model)) {
          EXPECT_EQ(unit->reductions(), step) << unit->name();
          EXPECT_FALSE(unit->unsharded()) << unit->name();
        }
        for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
      }
    });
  }
}

TEST(Siblings, UnderCheckpointsKeepTheirGradients) {
  for (int ranks : {1, 2}) {
    const Whole want = Reference(ranks);
    for (bool once : {false, true}) {
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        ShardBlocks(model, world.mesh(), {.reduce_once = once}, /*checkpoint=*/true);
        Initialize(model, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        tape.Backward(LossOf(model, world.device(), world.rank()));
        ExpectClose(GradientsOf(model, &world.group()), want);
        const std::vector<int64_t> calls = {3, 2, 1};
        for (int b = 0; b < 3; ++b) {
          EXPECT_EQ(UnitOf(model.block(b))->reductions(), once ? 1 : calls[static_cast<size_t>(b)]);
          EXPECT_FALSE(UnitOf(model.block(b))->unsharded());
        }
      });
    }
  }
}

}  // namespace
}  // namespace sherd::testing
