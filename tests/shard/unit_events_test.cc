// Which collectives a step makes, of which units, in which order.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/comm/recording_group.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

using Words = std::vector<std::string>;

// Runs `body` on two ranks; it is given its world and the log of its rank's collectives.
void RunLogged(const std::function<void(World&, CollectiveLog&)>& body) {
  std::vector<std::shared_ptr<CollectiveLog>> logs = {std::make_shared<CollectiveLog>(),
                                                      std::make_shared<CollectiveLog>()};
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    const auto log = logs[static_cast<size_t>(group->rank())];
    return MakeRecordingGroup(std::move(group), log);
  };
  RunRanks(
      2, [&](World& world) { body(world, *logs[static_cast<size_t>(world.rank())]); }, options);
}

// The units of the collectives of one kind, in order: "block0", "root".
Words UnitsIn(const CollectiveLog& log, CollectiveOp op) {
  Words units;
  for (const CollectiveRecord& record : log.records()) {
    if (record.op != op) continue;
    EXPECT_EQ(record.group, op == CollectiveOp::kAllGather ? "gather" : "reduce");
    std::string unit = record.module_path;
    if (unit == "unit 'the root module'") unit = "unit 'root'";
    units.push_back(unit.substr(6, unit.size() - 7));
  }
  return units;
}
Words Gathers(const CollectiveLog& log) { return UnitsIn(log, CollectiveOp::kAllGather); }
Words Reductions(const CollectiveLog& log) { return UnitsIn(log, CollectiveOp::kReduceScatter); }

class Step {
 public:
  Step(World& world, ShardModel& model) : world_(world), model_(model) {}
  Variable Forward(const std::vector<int>& order) {
    return Energy(model_(InputOf(world_.device(), world_.rank()), order));
  }
  // Waits for reductions, so that the log is complete.
  void Backward(const Variable& loss) {
    tape.Backward(loss);
    tape.Reset();
    GradientsOf(model_, nullptr);
  }
  Tape tape;

 private:
  World& world_;
  ShardModel& model_;
};

TEST(UnitEvents, ForwardGathersInOrderBackwardGathersAndReducesInReverse) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    const Variable loss = step.Forward({0, 1, 2});
    EXPECT_EQ(Gathers(log), (Words{"root", "block0", "block1", "block2"}));
    EXPECT_EQ(Reductions(log), Words{});
    step.Backward(loss);
    EXPECT_EQ(Gathers(log),
              (Words{"root", "block0", "block1", "block2", "block2", "block1", "block0"}));
    EXPECT_EQ(Reductions(log), (Words{"block2", "block1", "block0", "root"}));
    EXPECT_EQ(UnitOf(model.block(1))->gathers(), 2);
    EXPECT_EQ(UnitOf(model.block(1))->reductions(), 1);
  });
}

TEST(UnitEvents, WithoutReshardingTheForwardsGatherServesTheBackward) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums({.reshard_after_forward = false}));
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    const Variable loss = step.Forward({0, 1});
    EXPECT_TRUE(UnitOf(model.block(0))->unsharded());
    step.Backward(loss);
    EXPECT_EQ(Gathers(log), (Words{"root", "block0", "block1"}));
    EXPECT_EQ(Reductions(log), (Words{"block1", "block0", "root"}));
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  });
}

TEST(UnitEvents, RootStaysGatheredBetweenForwardAndBackwardAndBlocksDoNot) {
  RunLogged([](World& world, CollectiveLog&) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    const Variable loss = step.Forward({0, 1});
    EXPECT_TRUE(UnitOf(model)->unsharded());
    EXPECT_FALSE(UnitOf(model.block(0))->unsharded());
    EXPECT_FALSE(UnitOf(model.block(1))->unsharded());
    step.Backward(loss);
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  });
}

TEST(UnitEvents, RootThatReshardsIsGatheredAgain) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model(1);
    FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true}));
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    const Variable loss = step.Forward({0});
    EXPECT_FALSE(UnitOf(model)->unsharded());
    step.Backward(loss);
    EXPECT_EQ(Gathers(log), (Words{"root", "root"}));
    EXPECT_EQ(Reductions(log), (Words{"root"}));
  });
}

TEST(UnitEvents, EachOfManyForwardsBeforeOneBackwardReducesOnce) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    Variable loss = step.Forward({0, 1});
    for (int k = 1; k < 3; ++k) loss = Add(loss, step.Forward({0, 1}));
    log.Clear();
    step.Backward(loss);
    // The root is there for the first of the three, and gathered again for the others.
    EXPECT_EQ(Gathers(log),
              (Words{"block1", "block0", "root", "block1", "block0", "root", "block1", "block0"}));
    EXPECT_EQ(Reductions(log), (Words{"block1", "block0", "root", "block1", "block0", "root",
                                      "block1", "block0", "root"}));
  });
}

TEST(UnitEvents, BlockCalledTwiceInOneForwardGathersAndReducesForEachCall) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    step.Backward(step.Forward({0, 1, 0}));
    EXPECT_EQ(Gathers(log),
              (Words{"root", "block0", "block1", "block0", "block0", "block1", "block0"}));
    EXPECT_EQ(Reductions(log), (Words{"block0", "block1", "block0", "root"}));
  });
}

TEST(UnitEvents, FrozenSegmentsAreGatheredAndNeverReduced) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model(2);
    model.block(0).up.weight().set_requires_grad(false);
    for (const Parameter& parameter : model.block(1).parameters())
      parameter.set_requires_grad(false);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    step.Backward(step.Forward({0, 1}));
    EXPECT_EQ(Reductions(log), (Words{"block0", "root"}));
    // Of block0 the norm (5) and down (35), of the root the head (15); chunks over two ranks.
    EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter), (20 + 8) * 8);
    EXPECT_EQ(Gathers(log),
              (Words{"root", "block0", "block0", "block1", "block1", "block0", "block0"}))
        << "two segments of block0 are two collectives";
    EXPECT_FALSE(model.block(0).up.weight().local_grad().defined());
    EXPECT_FALSE(UnitOf(model.block(1))->HeldGradient(0).defined());
  });
}

TEST(UnitEvents, UnusedUnitHasNoCollectivesAndNoGradient) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    step.Backward(step.Forward({0, 2}));
    EXPECT_EQ(Gathers(log), (Words{"root", "block0", "block2", "block2", "block0"}));
    EXPECT_EQ(Reductions(log), (Words{"block2", "block0", "root"}));
    EXPECT_EQ(UnitOf(model.block(1))->gathers(), 0);
    for (int i = 0; i < UnitOf(model.block(1))->parameters(); ++i) {
      EXPECT_FALSE(UnitOf(model.block(1))->HeldGradient(i).defined());
    }
  });
}

TEST(UnitEvents, EvaluationGathersOnceAndLeavesEverythingSharded) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums({.reshard_after_forward = false}));
    Initialize(model, world.device(), 1);
    const auto held = [&] {
      return world.device().allocator().stats()[MemoryCategory::kUnsharded].current_bytes;
    };
    for (int k = 0; k < 2; ++k) {
      model(InputOf(world.device(), world.rank()), {0, 1, 2});
      for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
      EXPECT_EQ(held(), 0);
    }
    EXPECT_EQ(log.count(CollectiveOp::kAllGather), 8);
    EXPECT_EQ(log.count(CollectiveOp::kReduceScatter), 0);
  });
}

TEST(UnitEvents, ChangedParametersAreGatheredAgain) {
  RunLogged([](World& world, CollectiveLog& log) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    const Tensor before = step.Forward({0}).value();
    // The root is still gathered; its copy is old after this.
    model.head.weight().MutableLocal();
    kernels::Fill(model.head.weight().local(), 0.0);
    EXPECT_EQ(step.Forward({0}).value().ToHost<double>(), std::vector<double>{0.0});
    EXPECT_NE(before.ToHost<double>(), std::vector<double>{0.0});
    EXPECT_EQ(Gathers(log), (Words{"root", "block0", "root", "block0"}));
  });
}

TEST(UnitEvents, ForwardGathersOfANeverUsedLossAreFreedByTheRootsBackward) {
  RunLogged([](World& world, CollectiveLog&) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums({.reshard_after_forward = false}));
    Initialize(model, world.device(), 1);
    Step step(world, model);
    const Recording on(step.tape);
    step.Forward({2});
    step.Backward(step.Forward({0}));
    EXPECT_FALSE(UnitOf(model.block(2))->unsharded());
    EXPECT_EQ(world.device().allocator().stats()[MemoryCategory::kUnsharded].current_bytes, 0);
  });
}

}  // namespace
}  // namespace sherd::testing
