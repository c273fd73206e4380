// Ten steps of AdamW on sharded models give the losses and the values of the plain model.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/norm.h"
#include "tests/shard/training.h"

namespace sherd::testing {
namespace {

// How a unit is kept in the cases below.
struct Kept {
  const char* name;
  FullyShardOptions options;
};

const Kept kKept[] = {
    {"resharded", {}},
    {"kept after forward", {.reshard_after_forward = false}},
    {"kept after both", {.reshard_after_forward = false, .reshard_after_backward = false}},
    {"parked", {.park = 2}}};

Recipe<ShardModel> BlockRecipe(const FullyShardOptions& options,
                               const std::vector<int>& order = {0, 1, 2}) {
  return {.shard = [options](ShardModel& model,
                             const Mesh& mesh) { ShardAll(model, mesh, Sums(options)); },
          .loss =
              [order](ShardModel& model, const Device& device, int rank, int step) {
                return Energy(model(InputOf(device, rank, static_cast<uint64_t>(step)), order));
              }};
}

// Two linear layers with the shapes of their weights given.
class TwoLinear : public Module {
 public:
  TwoLinear(int64_t in, int64_t hidden, int64_t out)
      : first(in, hidden, Initializer::Normal(0.3), DType::kF64),
        second(hidden, out, Initializer::Normal(0.3), DType::kF64),
        in(in) {
    RegisterModule("first", first);
    RegisterModule("second", second);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](TwoLinear& self, const Variable& x) { return self.second(Relu(self.first(x))); },
        x);
  }
  LinearLayer first;
  LinearLayer second;
  const int64_t in;
};

TEST(FsdpTraining, RootAloneWithUnevenShapes) {
  const std::vector<int64_t> shapes[] = {{16, 15, 8}, {7, 15, 3}, {16, 17, 8}};
  for (const std::vector<int64_t>& shape : shapes) {
    for (int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(shape[1]);
      ExpectTrains<TwoLinear>(
          ranks,
          {.make = [&] { return std::make_unique<TwoLinear>(shape[0], shape[1], shape[2]); },
           .shard = [](TwoLinear& model, const Mesh& mesh) { FullyShard(model, mesh, Sums()); },
           .loss =
               [](TwoLinear& model, const Device& device, int rank, int step) {
                 return Energy(model(NormalTensor(device, DType::kF64, {3, model.in},
                                                  static_cast<uint64_t>(1000 * step + rank))));
               }});
    }
  }
}

// A LayerNorm with its weight and bias, and an RMSNorm, each before a linear layer.
class NormedBlock : public Module {
 public:
  static constexpr int64_t kChannels = 5;
  NormedBlock()
      : weight(RegisterParameter("weight", {kChannels}, Initializer::Normal(0.7), DType::kF64)),
        bias(RegisterParameter("bias", {kChannels}, Initializer::Normal(0.7), DType::kF64)) {
    RegisterModule("up", up);
    RegisterModule("rms", rms);
    RegisterModule("down", down);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](NormedBlock& self, const Variable& x) {
          const Variable y = Relu(self.up(LayerNorm(x, self.weight, self.bias)));
          return Add(x, self.down(self.rms(y)));
        },
        x);
  }
  const Parameter weight;
  const Parameter bias;
  LinearLayer up{kChannels, 7, Initializer::Normal(0.4), DType::kF64};
  RmsNormLayer rms{7, 1e-5, DType::kF64};
  LinearLayer down{7, kChannels, Initializer::Normal(0.4), DType::kF64};
};

class NormedModel : public Module {
 public:
  NormedModel() {
    RegisterModule("block0", block0);
    RegisterModule("block1", block1);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](NormedModel& self, const Variable& x) { return self.block1(self.block0(x)); }, x);
  }
  NormedBlock block0;
  NormedBlock block1;
};

TEST(FsdpTraining, NormLayersOfBothKinds) {
  for (const Kept& kept : kKept) {
    SCOPED_TRACE(kept.name);
    const FullyShardOptions options = Sums(kept.options);
    Recipe<NormedModel> recipe{
        .shard =
            [=](NormedModel& model, const Mesh& mesh) {
              FullyShard(model.block0, mesh, options);
              FullyShard(model.block1, mesh, options);
              FullyShard(model, mesh, options);
            },
        .loss =
            [](NormedModel& model, const Device& device, int rank, int step) {
              return Energy(model(InputOf(device, rank, static_cast<uint64_t>(step))));
            }};
    for (int ranks : {1, 2, 3, 4}) {
      if (options.park > 0 && ranks % options.park != 0) continue;
      ExpectTrains(ranks, recipe);
    }
    recipe.inside = 2;
    ExpectTrains(4, recipe);
  }
}

TEST(FsdpTraining, ManyUnitsHoweverTheyAreKept) {
  for (const Kept& kept : kKept) {
    SCOPED_TRACE(kept.name);
    for (int ranks : {1, 2, 3, 4}) {
      if (kept.options.park > 0 && ranks % kept.options.park != 0) continue;
      ExpectTrains(ranks, BlockRecipe(kept.options));
    }
  }
}

TEST(FsdpTraining, OnAHybridMesh) {
  for (const Kept& kept : kKept) {
    SCOPED_TRACE(kept.name);
    Recipe<ShardModel> recipe = BlockRecipe(kept.options);
    recipe.inside = 2;
    ExpectTrains(4, recipe);
  }
}

// A missing wait between streams would show as another loss.
TEST(FsdpTraining, SlowGathersReductionsAndBoth) {
  for (const Kept& kept : kKept) {
    for (const char* slow : {"gather", "reduce", ""}) {
      SCOPED_TRACE(absl::StrCat(kept.name, ", slow ", slow));
      ExpectTrains(2, BlockRecipe(kept.options), Delayed(slow, absl::Milliseconds(2)));
    }
  }
}

TEST(FsdpTraining, OffloadedToTheHost) {
  for (const char* slow : {"gather", "reduce"}) {
    for (const bool reshard : {true, false}) {
      SCOPED_TRACE(absl::StrCat("slow ", slow, reshard ? ", resharded" : ", kept"));
      Recipe<ShardModel> recipe = BlockRecipe({.reshard_after_forward = reshard, .offload = true});
      recipe.shard = [reshard](ShardModel& model, const Mesh& mesh) {
        const FullyShardOptions options{.reshard_after_forward = reshard, .offload = true};
        for (auto& block : model.blocks) FullyShard(*block, mesh, Sums(options));
        FullyShard(model, mesh, Sums(options));
      };
      ExpectTrains(2, recipe, Delayed(slow, absl::Milliseconds(1)));
    }
  }
  ExpectTrains(1, BlockRecipe({.offload = true}));
}

// The refresh of a unit that keeps its parameters was started ahead by a call that did not use it:
// the next one waits for it.
TEST(FsdpTraining, ARefreshAheadInVainIsWaitedForByTheNextCall) {
  for (const Stage& stage : {kZero1, kZero2, kZero3}) {
    Recipe<ShardModel> recipe = BlockRecipe({});
    recipe.shard = [stage](ShardModel& model, const Mesh& mesh) {
      ShardAll(model, mesh, Sums({.prefetch = 0, .stage = stage}));
      SetForwardPrefetch(model.block(0), {&model.block(1)});
    };
    recipe.loss = [](ShardModel& model, const Device& device, int rank, int step) {
      const Variable x = InputOf(device, rank, static_cast<uint64_t>(step));
      const Variable first = Energy(model(x, {0}));
      return Add(first, Energy(model(x, {1})));
    };
    ExpectTrains(2, recipe, Delayed("gather", absl::Milliseconds(4)));
  }
}

TEST(FsdpTraining, GathersStartedByHand) {
  for (const bool kept : {false, true}) {
    Recipe<ShardModel> recipe =
        BlockRecipe({.reshard_after_forward = !kept, .reshard_after_backward = !kept});
    recipe.before_step = [](ShardModel& model, int step) {
      StartUnshard(model);
      for (auto& block : model.blocks) StartUnshard(*block);
      // Given back unused, and started again.
      if (step % 2 == 1) Reshard(model.block(1));
      if (step % 3 == 1) StartUnshard(model.block(1));
    };
    ExpectTrains(2, recipe, Delayed("gather", absl::Milliseconds(1)));
    ExpectTrains(1, recipe);
  }
}

TEST(FsdpTraining, AUnitUsedTwiceInOneForward) {
  for (const Kept& kept : kKept) {
    SCOPED_TRACE(kept.name);
    ExpectTrains(2, BlockRecipe(kept.options, {0, 1, 0, 2, 2}));
    FullyShardOptions once = kept.options;
    once.reduce_once = true;
    ExpectTrains(2, BlockRecipe(once, {0, 1, 0, 2, 2}));
  }
}

TEST(FsdpTraining, ParametersAreWhereTheOptionsSayAfterEachPhase) {
  for (const Kept& kept : kKept) {
    SCOPED_TRACE(kept.name);
    RunRanks(4, [&](World& world) {
      ShardModel model;
      ShardAll(model, world.mesh(), Sums(kept.options));
      Initialize(model, world.device(), 1);
      const bool after_forward = kept.options.reshard_after_forward.value_or(true);
      const Whole before = ValuesOf(model, &world.group());
      for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
      Tape tape;
      const Recording on(tape);
      const Variable loss = Energy(model(InputOf(world.device(), world.rank()), {0, 1, 2}));
      EXPECT_TRUE(UnitOf(model)->unsharded());
      for (auto& block : model.blocks) EXPECT_EQ(UnitOf(*block)->unsharded(), !after_forward);
      ExpectClose(ValuesOf(model, &world.group()), before, 0.0);
      tape.Backward(loss);
      EXPECT_FALSE(UnitOf(model)->unsharded());
      for (auto& block : model.blocks) {
        EXPECT_EQ(UnitOf(*block)->unsharded(), !kept.options.reshard_after_backward);
        Reshard(*block);
        EXPECT_FALSE(UnitOf(*block)->unsharded());
      }
      ExpectClose(ValuesOf(model, &world.group()), before, 0.0);
    });
  }
}

TEST(FsdpTraining, ABlockTrainedAloneAfterItsRoot) {
  Recipe<ShardModel> recipe = BlockRecipe({});
  recipe.loss = [](ShardModel& model, const Device& device, int rank, int step) {
    const Variable x = InputOf(device, rank, static_cast<uint64_t>(step));
    return step % 3 == 1 ? Energy(model.block(0)(x)) : Energy(model(x, {0, 1, 2}));
  };
  recipe.after_backward = [](ShardModel& model, int) {
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  };
  for (int ranks : {1, 2}) ExpectTrains(ranks, recipe, Delayed("", absl::Milliseconds(1)));
}

TEST(FsdpTraining, SeveralRootsOnOneMesh) {
  Recipe<ShardModel> recipe = BlockRecipe({});
  recipe.shard = [](ShardModel& model, const Mesh& mesh) {
    for (auto& block : model.blocks) FullyShard(*block, mesh, Sums());
    FullyShard(model.head, mesh, Sums());
  };
  recipe.after_backward = [](ShardModel& model, int) {
    for (const Unit* unit : UnitsOf(model)) {
      EXPECT_EQ(unit->context(), ContextOf(model)) << unit->name();
      EXPECT_FALSE(unit->unsharded()) << unit->name();
      EXPECT_GT(unit->reductions(), 0) << unit->name();
    }
  };
  for (int ranks : {1, 2, 3}) ExpectTrains(ranks, recipe);
}

TEST(FsdpTraining, ReshardingIsChangedBetweenSteps) {
  Recipe<ShardModel> recipe = BlockRecipe({});
  recipe.before_step = [](ShardModel& model, int step) {
    SetReshardAfterForward(model, step % 2 == 0);
    SetReshardAfterBackward(model.block(1), step % 3 != 0);
  };
  recipe.after_backward = [](ShardModel& model, int step) {
    EXPECT_EQ(UnitOf(model.block(1))->unsharded(), step % 3 == 0) << step;
    EXPECT_FALSE(UnitOf(model.block(0))->unsharded()) << step;
  };
  ExpectTrains(2, recipe);
}

}  // namespace
}  // namespace sherd::testing
