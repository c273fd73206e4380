// Scopes of one unit inside each other: a unit reduces when its last backward scope closes, and is
// freed when none is open.

#include <gtest/gtest.h>

#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

TEST(NestedScopes, PenaltyOnWeightsInAUnitScope) {
  for (int ranks : {1, 2, 3}) {
    ExpectPlainGradients(ranks, [](ShardModel& m, const Device& d, int r) {
      const Variable loss = Energy(m(InputOf(d, r), {0, 1}));
      if (UnitOf(m) == nullptr) return Add(loss, Energy(m.block(1).up.weight()));
      const UnitScope scope(m.block(1));
      return Add(loss, Energy(m.block(1).up.weight()));
    });
  }
}

TEST(NestedScopes, BackwardInsideAUnitScopeThatIsNotRecorded) {
  // The scope keeps the unit gathered; the reduction does not wait for it.
  for (int ranks : {1, 2}) {
    const StepLoss loss = [](ShardModel& m, const Device& d, int r) {
      return Energy(m(InputOf(d, r), {0}));
    };
    const Whole want = PlainGradients(ranks, loss);
    RunRanks(ranks, [&](World& world) {
      ShardModel model;
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      {
        const UnitScope scope(model.block(0));
        {
          const Recording on(tape);
          tape.Backward(loss(model, world.device(), world.rank()));
        }
        EXPECT_TRUE(UnitOf(model.block(0))->unsharded());
      }
      EXPECT_FALSE(UnitOf(model.block(0))->unsharded());
      ExpectClose(GradientsOf(model, &world.group()), want);
    });
  }
}

TEST(NestedScopes, BlockCalledWhileItsRootIsOpenAndDirectlyAfterwards) {
  for (int ranks : {1, 2}) {
    ExpectPlainGradients(ranks, [](ShardModel& m, const Device& d, int r) {
      const Variable x = InputOf(d, r);
      const Variable inside = m(x, {0, 1});
      return Add(Energy(inside), Energy(m.block(0)(m.block(0)(x))));
    });
  }
}

// A module that calls itself: the scopes of its one unit are nested.
class Recursive : public Module {
 public:
  Recursive() : layer(4, 4, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("layer", layer);
  }
  Variable operator()(const Variable& x, int depth) {
    return Call(
        *this,
        [](Recursive& self, const Variable& x, int depth) {
          Variable y = Silu(self.layer(x));
          if (depth > 0) y = Add(self(y, depth - 1), self(Scale(x, 0.5), depth - 1));
          return self.layer(y);
        },
        x, depth);
  }
  LinearLayer layer;
};

TEST(NestedScopes, ModuleThatCallsItselfReducesWhenTheOutermostCallCloses) {
  for (int variant = 0; variant < 3; ++variant) {
    SCOPED_TRACE(variant == 0   ? "no checkpoint"
                 : variant == 1 ? "checkpoint inside"
                                : "checkpoint outside");
    const auto step = [](Recursive& model, const Device& device, int rank) {
      return Energy(
          model(NormalTensor(device, DType::kF64, {2, 4}, static_cast<uint64_t>(rank)), 2));
    };
    for (int ranks : {1, 2}) {
      Whole want;
      {
        const Device device = Device::Cpu();
        Recursive model;
        Initialize(model, device, 1);
        Tape tape;
        for (int rank = 0; rank < ranks; ++rank) {
          const Recording on(tape);
          tape.Backward(step(model, device, rank));
          tape.Reset();
        }
        want = GradientsOf(model, nullptr);
      }
      RunRanks(ranks, [&](World& world) {
        Recursive model;
        if (variant == 1) Checkpoint(model);
        FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true}));
        if (variant == 2) Checkpoint(model);
        Initialize(model, world.device(), 1);
        Tape tape;
        {
          const Recording on(tape);
          const Variable loss = step(model, world.device(), world.rank());
          EXPECT_FALSE(UnitOf(model)->unsharded());
          tape.Backward(loss);
        }
        EXPECT_FALSE(UnitOf(model)->unsharded());
        if (variant == 0) {
          EXPECT_EQ(UnitOf(model)->reductions(), 1);
          EXPECT_EQ(UnitOf(model)->gathers(), 2);
        }
        ExpectClose(GradientsOf(model, &world.group()), want);
      });
    }
  }
}

}  // namespace
}  // namespace sherd::testing
