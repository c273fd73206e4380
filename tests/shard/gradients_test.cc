// Gradients of a sharded model are those of the plain model, whatever is called how often and by
// whom.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "sherd/runtime/comm/delayed_group.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

TEST(ShardedGradients, SumOverRanks) {
  for (int ranks : {1, 2, 3, 4}) {
    for (bool reshard : {true, false}) {
      ExpectPlainGradients(ranks,
                           [](ShardModel& m, const Device& d, int r) {
                             return Energy(m(InputOf(d, r), {0, 1, 2}));
                           },
                           {.reshard_after_forward = reshard});
    }
  }
}

TEST(ShardedGradients, BlocksCalledSeveralTimesAndNotAtAll) {
  for (int ranks : {1, 2, 3}) {
    ExpectPlainGradients(ranks, [](ShardModel& m, const Device& d, int r) {
      return Energy(m(InputOf(d, r), {0, 2, 0, 0}));
    });
  }
}

TEST(ShardedGradients, ManyForwardsBeforeOneBackward) {
  for (int ranks : {1, 2, 3}) {
    for (bool reshard : {true, false}) {
      ExpectPlainGradients(ranks,
                           [](ShardModel& m, const Device& d, int r) {
                             Variable loss = Energy(m(InputOf(d, r), {0, 1, 2}));
                             for (uint64_t k = 1; k < 4; ++k)
                               loss = Add(loss, Scale(Energy(m(InputOf(d, r, k), {1, 0})),
                                                      1.0 + static_cast<double>(k)));
                             return loss;
                           },
                           {.reshard_after_forward = reshard});
    }
  }
}

// A block whose second layer only some ranks use.
class Choosing : public Module {
 public:
  Choosing()
      : always(4, 4, Initializer::Normal(0.4), DType::kF64),
        sometimes(4, 4, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("always", always);
    RegisterModule("sometimes", sometimes);
  }
  Variable operator()(const Variable& x, bool use) {
    return Call(
        *this,
        [](Choosing& self, const Variable& x, bool use) {
          const Variable y = self.always(x);
          return use ? self.sometimes(y) : y;
        },
        x, use);
  }
  LinearLayer always;
  LinearLayer sometimes;
};

TEST(ShardedGradients, LayerUsedByOneRankInOneOfManyCallsKeepsItsSum) {
  const auto step = [](Choosing& model, const Device& device, int rank) {
    Variable loss;
    for (int call = 0; call < 3; ++call) {
      const Variable x =
          NormalTensor(device, DType::kF64, {2, 4}, static_cast<uint64_t>(10 * rank + call));
      const Variable part = Energy(model(x, rank == 1 && call == 1));
      loss = call == 0 ? part : Add(loss, part);
    }
    return loss;
  };
  Whole want;
  {
    const Device device = Device::Cpu();
    Choosing model;
    Initialize(model, device, 1);
    Tape tape;
    for (int rank = 0; rank < 2; ++rank) {
      const Recording on(tape);
      tape.Backward(step(model, device, rank));
      tape.Reset();
    }
    want = GradientsOf(model, nullptr);
  }
  EXPECT_EQ(want.size(), 2u);
  RunRanks(2, [&](World& world) {
    Choosing model;
    FullyShard(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    PoisonFreeMemory(world.device());
    Tape tape;
    const Recording on(tape);
    tape.Backward(step(model, world.device(), world.rank()));
    EXPECT_EQ(model.sometimes.weight().local_grad().defined(), world.rank() == 1)
        << "before the ranks agree";
    ExpectClose(GradientsOf(model, &world.group()), want);
  });
}

TEST(ShardedGradients, AddUpOverBackwardsAndStartAgainWhenCleared) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Tape tape;
    const auto backward = [&] {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0})));
      tape.Reset();
    };
    backward();
    const Whole once = GradientsOf(model, &world.group());
    backward();
    Whole twice = GradientsOf(model, &world.group());
    for (auto& [name, values] : twice) {
      for (double& value : values) value /= 2;
    }
    ExpectClose(twice, once);
    // One parameter is cleared, the others keep what they have.
    model.block(0).up.weight().ClearGrad();
    backward();
    Whole mixed = GradientsOf(model, &world.group());
    for (auto& [name, values] : mixed) {
      if (name == "block0.up.weight") continue;
      for (double& value : values) value /= 3;
    }
    ExpectClose(mixed, once);
  });
}

TEST(ShardedGradients, SlowedCollectivesChangeNothing) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    RankOptions options;
    options.wrap_group =
        [seed](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
      return MakeDelayedGroup(std::move(group), {.seed = seed, .max_delay = absl::Milliseconds(3)});
    };
    ExpectPlainGradients(
        3,
        [](ShardModel& m, const Device& d, int r) {
          return Add(Energy(m(InputOf(d, r), {0, 1, 0})), Energy(m(InputOf(d, r, 1), {2, 1})));
        },
        {}, options);
  }
}

TEST(ShardedGradients, PoisonInThePaddingHasNoEffect) {
  const StepLoss loss = [](ShardModel& m, const Device& d, int r) {
    return Energy(m(InputOf(d, r), {0, 1, 0}));
  };
  const Whole want = PlainGradients(4, loss);
  RunRanks(4, [&](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto poison = [&] {
      for (Unit* unit : UnitsOf(model)) {
        const Layout& layout = unit->layout();
        const LayoutSegment& segment = layout.segments()[0];
        const int64_t begin = std::clamp<int64_t>(
            segment.elems - world.rank() * segment.chunk_elems, 0, segment.chunk_elems);
        for (const Tensor& piece : {unit->local(0), unit->HeldGradient(0)}) {
          if (!piece.defined()) continue;
          kernels::Fill(
              Tensor::View(piece.storage(), begin, DType::kF64, {segment.chunk_elems - begin}),
              nan);
        }
      }
    };
    poison();
    PoisonFreeMemory(world.device());
    Tape tape;
    for (int k = 0; k < 2; ++k) {
      const Recording on(tape);
      tape.Backward(loss(model, world.device(), world.rank()));
      tape.Reset();
      poison();
    }
    Whole got = GradientsOf(model, &world.group());
    for (auto& [name, values] : got) {
      for (double& value : values) value /= 2;
    }
    ExpectClose(got, want);
  });
}

// Returns views of its own weight, in a struct of sorts.
class Exposing : public Module {
 public:
  Exposing() : layer(4, 4, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("layer", layer);
  }
  std::pair<Variable, std::vector<Variable>> operator()(int rows) {
    return Call(
        *this,
        [](Exposing& self, int rows) {
          const Variable w = self.layer.weight();
          return std::make_pair(w, std::vector<Variable>{Slice(w, 0, 0, rows), w.Detach()});
        },
        rows);
  }
  LinearLayer layer;
};

TEST(ShardedGradients, ResultsThatAliasTheUnitAreCopiedAndCarryGradients) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [&](World& world) {
      Exposing model;
      FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true}));
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      const auto [weight, views] = model(2);
      EXPECT_FALSE(UnitOf(model)->unsharded());
      EXPECT_EQ(weight.value().ToHost<double>(), views[1].value().ToHost<double>());
      tape.Backward(Add(Sum(weight), Sum(views[0])));
      std::vector<double> want(16, 1.0 * ranks);
      std::fill(want.begin(), want.begin() + 8, 2.0 * ranks);
      ExpectClose(GradientsOf(model, &world.group()), {{"layer.weight", want}});
    });
  }
}

TEST(ShardedParameters, InitialValuesAreThoseOfThePlainModelForAnyRanks) {
  const Device device = Device::Cpu();
  ShardModel plain;
  Initialize(plain, device, 7);
  const Whole want = ValuesOf(plain, nullptr);
  for (int ranks : {1, 2, 3, 4}) {
    for (bool before : {true, false}) {
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        if (before) Initialize(model, world.device(), 7);
        ShardAll(model, world.mesh(), Sums());
        if (!before) Initialize(model, world.device(), 7);
        EXPECT_EQ(ValuesOf(model, &world.group()), want) << ranks << " ranks";
        EXPECT_EQ(model.block(0).up.weight().name(), "block0.up.weight");
        EXPECT_EQ(model.block(0).up.weight().shape(), (Shape{7, 5}));
      });
    }
  }
}

}  // namespace
}  // namespace sherd::testing
