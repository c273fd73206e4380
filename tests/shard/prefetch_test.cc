// Gathers started ahead: when, how many, and that nothing else changes.

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/module_hooks.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

using Names = std::set<std::string>;

// Notes, whenever a block runs, which blocks are gathered or on their way.
class Probe {
 public:
  explicit Probe(ShardModel& model) : model_(model) {
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      AddHooks(*model.blocks[b], {.before_forward = [this, b](const Module&) { Note("f", b); },
                                  .before_backward = [this, b](const Module&) { Note("b", b); }});
    }
  }
  // "f0: 0 1, f1: 1 2, ..." since the last call.
  std::string Take() { return std::exchange(seen_, ""); }

 private:
  void Note(const char* phase, size_t b) {
    absl::StrAppend(&seen_, seen_.empty() ? "" : ", ", phase, b, ":");
    for (size_t k = 0; k < model_.blocks.size(); ++k) {
      const Unit* unit = UnitOf(*model_.blocks[k]);
      if (unit != nullptr && unit->unsharded()) absl::StrAppend(&seen_, " ", k);
    }
  }
  ShardModel& model_;
  std::string seen_;
};

struct Trained {
  std::vector<std::string> steps;
  std::vector<Whole> gradients;
  std::vector<int64_t> gathers;
};

Trained Train(World& world, int prefetch, const std::vector<std::vector<int>>& orders,
              bool checkpoint = false) {
  ShardModel model;
  Probe probe(model);
  for (auto& block : model.blocks) {
    if (checkpoint) Checkpoint(*block);
    FullyShard(*block, world.mesh(), Sums({.prefetch = prefetch}));
  }
  FullyShard(model, world.mesh(), Sums({.prefetch = prefetch}));
  Initialize(model, world.device(), 1);
  Trained run;
  for (size_t step = 0; step < orders.size(); ++step) {
    Tape tape;
    const Recording on(tape);
    for (const Parameter& p : model.parameters()) p.ClearGrad();
    tape.Backward(Energy(model(InputOf(world.device(), world.rank(), step), orders[step])));
    run.steps.push_back(probe.Take());
    run.gradients.push_back(GradientsOf(model, &world.group()));
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  }
  for (auto& block : model.blocks) run.gathers.push_back(UnitOf(*block)->gathers());
  return run;
}

TEST(Prefetch, FollowsTheOrderOfTheStepBefore) {
  for (int ranks : {2, 3}) {
    RunRanks(ranks, [](World& world) {
      const std::vector<std::vector<int>> orders(3, {0, 1, 2});
      const Trained none = Train(world, 0, orders);
      const Trained one = Train(world, 1, orders);
      const Trained two = Train(world, 2, orders);
      const std::string alone = "f0: 0, f1: 1, f2: 2, b2: 2, b1: 1, b0: 0";
      EXPECT_EQ(none.steps, (std::vector<std::string>{alone, alone, alone}));
      const std::string ahead = "f0: 0 1, f1: 1 2, f2: 2, b2: 1 2, b1: 0 1, b0: 0";
      EXPECT_EQ(one.steps, (std::vector<std::string>{alone, ahead, ahead}));
      const std::string far = "f0: 0 1 2, f1: 1 2, f2: 2, b2: 0 1 2, b1: 0 1, b0: 0";
      EXPECT_EQ(two.steps, (std::vector<std::string>{alone, far, far}));
      for (const Trained* run : {&one, &two}) {
        EXPECT_EQ(run->gathers, none.gathers);
        for (size_t k = 0; k < orders.size(); ++k) {
          ExpectClose(run->gradients[k], none.gradients[k], 0.0);
        }
      }
    });
  }
}

TEST(Prefetch, OfARecomputeGathersNothingWhoseBackwardIsOver) {
  RunRanks(2, [](World& world) {
    const Trained run = Train(world, 2, std::vector<std::vector<int>>(3, {0, 1, 2}), true);
    EXPECT_EQ(run.steps[2], "f0: 0 1 2, f1: 1 2, f2: 2, b2: 0 1 2, b1: 0 1, b0: 0");
    EXPECT_EQ(run.gathers, (std::vector<int64_t>{6, 6, 6}));
  });
}

TEST(Prefetch, ABlockUsedTwiceIsGatheredAheadWhenItsFirstUseIsOver) {
  RunRanks(2, [](World& world) {
    const std::vector<std::vector<int>> orders(3, {0, 1, 0, 2});
    const Trained none = Train(world, 0, orders);
    const Trained run = Train(world, 1, orders);
    EXPECT_EQ(run.steps[2], "f0: 0 1, f1: 0 1, f0: 0 2, f2: 2, b2: 0 2, b0: 0 1, b1: 0 1, b0: 0");
    EXPECT_EQ(run.gathers, none.gathers);
    for (size_t k = 0; k < orders.size(); ++k)
      ExpectClose(run.gradients[k], none.gradients[k], 0.0);
  });
}

// The root's first call of a step gathers the root too, the second has it.
TEST(Prefetch, EachCallOfARootFollowsItsLikeOfTheStepBefore) {
  RunRanks(2, [](World& world) {
    const auto train = [&](int prefetch) {
      ShardModel model;
      Probe probe(model);
      for (auto& block : model.blocks) {
        FullyShard(*block, world.mesh(), Sums({.prefetch = prefetch}));
      }
      FullyShard(model, world.mesh(), Sums({.prefetch = prefetch}));
      Initialize(model, world.device(), 1);
      Trained run;
      for (size_t step = 0; step < 3; ++step) {
        Tape tape;
        const Recording on(tape);
        for (const Parameter& p : model.parameters()) p.ClearGrad();
        std::vector<Variable> calls;
        for (int call : {0, 5}) {
          const Variable x = InputOf(world.device(), world.rank() + call, step);
          calls.push_back(Energy(model(x, {0, 1, 2})));
        }
        tape.Backward(Add(calls[0], calls[1]));
        run.steps.push_back(probe.Take());
        run.gradients.push_back(GradientsOf(model, &world.group()));
      }
      for (auto& block : model.blocks) run.gathers.push_back(UnitOf(*block)->gathers());
      return run;
    };
    const Trained none = train(0), run = train(1);
    const std::string forward = "f0: 0 1, f1: 1 2, f2: 2, ", backward = "b2: 1 2, b1: 0 1, b0: 0";
    EXPECT_EQ(run.steps[2], forward + forward + backward + ", " + backward);
    EXPECT_EQ(run.gathers, none.gathers);
    for (size_t k = 0; k < 3; ++k) ExpectClose(run.gradients[k], none.gradients[k], 0.0);
  });
}

TEST(Prefetch, AnotherOrderIsRightAndLeavesNothingGathered) {
  for (int prefetch : {1, 2}) {
    RunRanks(2, [&](World& world) {
      const std::vector<std::vector<int>> orders = {{0, 1, 2}, {0, 2}, {2, 1, 0}, {0}, {0, 1, 2}};
      const Trained none = Train(world, 0, orders);
      const Trained run = Train(world, prefetch, orders);
      for (size_t k = 0; k < orders.size(); ++k) {
        ExpectClose(run.gradients[k], none.gradients[k], 0.0);
      }
    });
  }
}

TEST(Prefetch, WaitsForNewParameters) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    double first = 0.0;
    for (int step = 0; step < 4; ++step) {
      Tape tape;
      const Recording on(tape);
      const Variable loss = Energy(model(InputOf(world.device(), 0), {0, 1, 2}));
      tape.Backward(loss);
      if (step == 0) first = loss.value().ToHost<double>()[0];
      for (const Parameter& p : model.parameters()) {
        p.ClearGrad();
        const Tensor local = p.MutableLocal();
        if (step < 2) kernels::Scale(local, step == 0 ? 0.5 : 2.0, local);
      }
      const double now = loss.value().ToHost<double>()[0];
      if (step != 0) {
        EXPECT_EQ(now == first, step > 1) << "step " << step;
      }
    }
  });
}

TEST(Prefetch, AFailureWhileAGatherIsAheadReachesEveryRank) {
  std::string caught;
  const auto start = std::chrono::steady_clock::now();
  try {
    RunRanks(3, [](World& world) {
      ShardModel model;
      bool breaks = false;
      AddHooks(model.block(0), {.before_forward = [&](const Module&) {
                 if (breaks) throw std::runtime_error("rank 1 broke");
               }});
      ShardAll(model, world.mesh(), Sums({.prefetch = 2}));
      Initialize(model, world.device(), 1);
      for (int step = 0; step < 3; ++step) {
        breaks = step == 2 && world.rank() == 1;
        Tape tape;
        const Recording on(tape);
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 1, 2})));
      }
    });
  } catch (const Error& error) {
    caught = error.what();
  }
  EXPECT_TRUE(Contains(caught, "rank 1 broke"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Prefetch, EvaluationFollowsItsOwnOrder) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    Probe probe(model);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    const Variable x = InputOf(world.device(), 0);
    for (int k = 0; k < 2; ++k) {
      model(x, {0, 1, 2});
      EXPECT_EQ(probe.Take(), k == 0 ? "f0: 0, f1: 1, f2: 2" : "f0: 0 1, f1: 1 2, f2: 2");
      for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
    }
  });
}

TEST(Prefetch, TheFirstGatherThatDiffersEndsItAndWhatCameForNothingIsFreed) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    Probe probe(model);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    const Variable x = InputOf(world.device(), 0);
    const std::vector<std::pair<std::vector<int>, std::string>> evaluations = {
        {{0, 1, 2}, "f0: 0, f1: 1, f2: 2"},
        {{0, 2}, "f0: 0 1, f2: 1 2"},           // 1 came for nothing
        {{0, 2, 1}, "f0: 0 2, f2: 2, f1: 1"},   // as the one before, and one more
        {{1, 0, 2}, "f1: 0 1, f0: 0, f2: 2"}};  // 0 came first, then nothing is ahead
    for (const auto& [order, seen] : evaluations) {
      model(x, order);
      EXPECT_EQ(probe.Take(), seen);
      for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
    }
  });
}

TEST(Prefetch, ByHandIsUsedByTheNextCallOrGivenBack) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums({.prefetch = 0}));
    Initialize(model, world.device(), 1);
    Unit* unit = UnitOf(model.block(1));
    StartUnshard(model.block(1));
    StartUnshard(model.block(1));  // on its way already
    EXPECT_TRUE(unit->unsharded());
    EXPECT_EQ(unit->gathers(), 1);
    const Variable x = InputOf(world.device(), 0);
    model(x, {0, 1});
    EXPECT_EQ(unit->gathers(), 1);
    EXPECT_FALSE(unit->unsharded());

    StartUnshard(model.block(1));
    Reshard(model.block(1));
    EXPECT_FALSE(unit->unsharded());
    {
      StartUnshard(model.block(1));
      const UnitScope scope(model.block(1));
      EXPECT_EQ(unit->gathers(), 3);
      Reshard(model.block(1));  // a scope is open
      EXPECT_TRUE(unit->unsharded());
    }
    EXPECT_FALSE(unit->unsharded());

    // What changed in between is gathered again.
    StartUnshard(model.block(1));
    const Parameter weight = model.block(1).up.weight();
    unit->Reshard();
    StartUnshard(model.block(1));
    kernels::Fill(weight.MutableLocal(), 2.0);
    {
      const UnitScope scope(model.block(1));
      EXPECT_EQ(weight.variable().value().ToHost<double>(),
                std::vector<double>(static_cast<size_t>(weight.numel()), 2.0));
    }

    // Never used: the root's backward frees it.
    Tape tape;
    const Recording on(tape);
    StartUnshard(model.block(2));
    tape.Backward(Energy(model(x, {0})));
    for (const Unit* u : UnitsOf(model)) EXPECT_FALSE(u->unsharded()) << u->name();
    EXPECT_TRUE(Contains(ErrorOf([&] { StartUnshard(model.head); }), "not a unit"));
    EXPECT_TRUE(Contains(ErrorOf([&] { Reshard(model.head); }), "not a unit"));
  });
}

TEST(Prefetch, RefusesANegativeDepth) {
  RunRanks(1, [](World& world) {
    ShardModel model;
    EXPECT_TRUE(Contains(ErrorOf([&] { FullyShard(model, world.mesh(), Sums({.prefetch = -1})); }),
                         "prefetch is -1"));
  });
}

}  // namespace
}  // namespace sherd::testing
