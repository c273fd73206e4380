// Checkpoints inside and around calls of sharded units: how often each gathers and reduces, and
// what is said about the order that costs more.

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/autograd/module_hooks.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

// Collects what ranks log.
struct Lines {
  std::mutex mutex;
  std::vector<std::string> all;
  LogSink Sink() {
    return [this](const LogRecord& record) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (record.level == LogLevel::kInfo) return;  // who divides
      EXPECT_EQ(record.level, LogLevel::kWarning);
      all.push_back("rank " + std::to_string(record.rank) + ": " + std::string(record.text));
    };
  }
};

struct Counts {
  int64_t gathers = 0, reductions = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};

Counts CountsOf(const Module& module) {
  return {UnitOf(module)->gathers(), UnitOf(module)->reductions()};
}

// One step of a sharded model of three blocks in turn, prepared by `wrap` after the sharding;
// checks the gradients and that nothing is left gathered, then hands the model to `check`.
void Step(int ranks, const std::function<void(ShardModel&, const Mesh&)>& wrap,
          const std::function<void(ShardModel&, int rank)>& check, int steps = 1,
          const LogSink& log = {}) {
  const StepLoss loss = [](ShardModel& m, const Device& d, int r) {
    return Energy(m(InputOf(d, r), {0, 1, 2}));
  };
  const Whole want = PlainGradients(ranks, loss);
  RankOptions options;
  options.log = log;
  RunRanks(
      ranks,
      [&](World& world) {
        ShardModel model;
        wrap(model, world.mesh());
        Initialize(model, world.device(), 1);
        for (int step = 0; step < steps; ++step) {
          for (const Parameter& p : model.parameters()) p.ClearGrad();
          Tape tape;
          const Recording on(tape);
          tape.Backward(loss(model, world.device(), world.rank()));
        }
        for (Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
        check(model, world.rank());
        ExpectClose(GradientsOf(model, &world.group()), want);
      },
      options);
}

TEST(CheckpointOrder, InsideOneCallGathersTwiceAndReducesOnce) {
  for (int ranks : {1, 2, 3}) {
    Lines lines;
    Step(
        ranks,
        [](ShardModel& m, const Mesh& mesh) {
          for (auto& block : m.blocks) Checkpoint(*block);
          ShardAll(m, mesh, Sums());
        },
        [](ShardModel& m, int) {
          for (auto& block : m.blocks) EXPECT_EQ(CountsOf(*block), (Counts{2, 1}));
        },
        1, lines.Sink());
    EXPECT_TRUE(lines.all.empty()) << lines.all[0];
  }
}

TEST(CheckpointOrder, AroundOneCallCostsTheSame) {
  for (int ranks : {1, 2}) {
    Lines lines;
    Step(
        ranks,
        [](ShardModel& m, const Mesh& mesh) {
          ShardAll(m, mesh, Sums());
          for (auto& block : m.blocks) {
            Checkpoint(*block, {.policy = KeepMatmuls(), .wrong_order = WrongOrder::kError});
          }
        },
        [](ShardModel& m, int) {
          for (auto& block : m.blocks) EXPECT_EQ(CountsOf(*block), (Counts{2, 1}));
        },
        1, lines.Sink());
    EXPECT_TRUE(lines.all.empty()) << lines.all[0];
  }
}

TEST(CheckpointOrder, AroundSeveralGathersThreeTimesAndSaysSoOnce) {
  for (int ranks : {1, 2}) {
    Lines lines;
    Step(
        ranks,
        [](ShardModel& m, const Mesh& mesh) {
          for (auto& block : m.blocks) FullyShard(*block, mesh, Sums());
          FullyShard(m, mesh, Sums());
          Checkpoint(m);
        },
        [](ShardModel& m, int) {
          // The last one is still gathered when its backward begins.
          EXPECT_EQ(CountsOf(m.block(0)), (Counts{3, 1}));
          EXPECT_EQ(CountsOf(m.block(1)), (Counts{3, 1}));
          EXPECT_LE(CountsOf(m.block(2)).gathers, 3);
          EXPECT_EQ(CountsOf(m.block(2)).reductions, 1);
        },
        1, lines.Sink());
    ASSERT_EQ(lines.all.size(), static_cast<size_t>(ranks)) << "each rank once";
    EXPECT_TRUE(
        Contains(lines.all[0], "the checkpointed call of the root module is around 4 calls"));
    EXPECT_TRUE(Contains(lines.all[0], "FullyShard(Checkpoint(block), mesh)"));
  }
}

TEST(CheckpointOrder, WarnsOnceHoweverManySteps) {
  Lines mesh_lines;
  Lines own_lines;
  for (bool own : {false, true}) {
    RankOptions options;
    options.log = mesh_lines.Sink();
    RunRanks(
        1,
        [&](World& world) {
          ShardModel model;
          ShardAll(model, world.mesh(), Sums());
          CheckpointOptions checkpoint;
          if (own) checkpoint.log = own_lines.Sink();
          Checkpoint(model, checkpoint);
          Initialize(model, world.device(), 1);
          Tape tape;
          for (int step = 0; step < 3; ++step) {
            const Recording on(tape);
            tape.Backward(Energy(model(InputOf(world.device(), 0), {0, 1})));
            tape.Reset();
          }
        },
        options);
  }
  EXPECT_EQ(mesh_lines.all.size(), 1u);
  EXPECT_EQ(own_lines.all.size(), 1u);
}

TEST(CheckpointOrder, FunctionAroundSeveralCallsWarnsOncePerUnit) {
  Lines lines;
  RankOptions options;
  options.log = lines.Sink();
  RunRanks(
      1,
      [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums());
        Initialize(model, world.device(), 1);
        Tape tape;
        ShardModel* m = &model;
        for (int step = 0; step < 3; ++step) {
          const Recording on(tape);
          const Variable y =
              Checkpoint([m](const Variable& x) { return m->block(1)(m->block(0)(x)); },
                         Variable::Leaf(InputOf(world.device(), 0).value()));
          tape.Backward(Energy(y));
          tape.Reset();
        }
        EXPECT_EQ(CountsOf(model.block(0)), (Counts{9, 3}));
        for (Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded());
      },
      options);
  ASSERT_EQ(lines.all.size(), 1u);
  EXPECT_TRUE(Contains(lines.all[0], "a checkpointed function"));
}

TEST(CheckpointOrder, AllowedOneSaysNothing) {
  Lines lines;
  Step(
      1,
      [](ShardModel& m, const Mesh& mesh) {
        ShardAll(m, mesh, Sums());
        Checkpoint(m, {.wrong_order = WrongOrder::kAllow});
      },
      [](ShardModel& m, int) {
        EXPECT_EQ(CountsOf(m.block(0)), (Counts{3, 1}));
      },
      1, lines.Sink());
  EXPECT_TRUE(lines.all.empty());
}

TEST(CheckpointOrder, RefusedInTheFirstPassBeforeAnythingIsLost) {
  for (int ranks : {1, 2}) {
    for (bool nested : {false, true}) {
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums());
        Checkpoint(model, {.wrong_order = WrongOrder::kError});
        if (nested) Checkpoint(model, {.wrong_order = WrongOrder::kAllow});
        Initialize(model, world.device(), 1);
        Tape tape;
        {
          const Recording on(tape);
          const std::string error = ErrorOf([&] {
            model(InputOf(world.device(), world.rank()), {0, 1, 2});
          });
          EXPECT_TRUE(Contains(error, "around 4 calls of sharded units"));
          EXPECT_TRUE(Contains(error, "wrong_order = kAllow"));
          EXPECT_EQ(tape.ops(), 0) << "nothing was recorded";
        }
        for (auto& block : model.blocks) EXPECT_FALSE(UnitOf(*block)->unsharded());
        // The model and its groups are as good as before: without a recording there is no order.
        EXPECT_EQ(ErrorOf([&] {
                    model(InputOf(world.device(), world.rank()), {0, 1, 2});
                  }),
                  "no error");
        for (Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
      });
    }
  }
}

TEST(CheckpointOrder, ModuleThatCallsItselfIsOneUnitsCall) {
  // The scopes of one unit inside each other are one gathering: nothing to warn of.
  struct Twice : Module {
    Twice() : layer(5, 5, Initializer::Normal(0.4), DType::kF64) { RegisterModule("layer", layer); }
    Variable operator()(const Variable& x, int depth) {
      return Call(
          *this,
          [](Twice& self, const Variable& x, int depth) {
            const Variable y = Silu(self.layer(x));
            return depth > 0 ? self(y, depth - 1) : y;
          },
          x, depth);
    }
    LinearLayer layer;
  };
  RunRanks(1, [&](World& world) {
    Twice model;
    FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true}));
    Initialize(model, world.device(), 1);
    Twice* m = &model;
    Tape tape;
    const Recording on(tape);
    const Variable y = Checkpoint(
        {.wrong_order = WrongOrder::kError}, [m](const Variable& x) { return (*m)(x, 2); },
        InputOf(world.device(), 0));
    tape.Backward(Energy(y));
    EXPECT_EQ(CountsOf(model), (Counts{2, 1}));
    EXPECT_FALSE(UnitOf(model)->unsharded());
  });
}

TEST(CheckpointOrder, HooksOfModulesAreNoUnits) {
  RunRanks(1, [&](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    int64_t calls = 0;
    const ModuleHooks hooks{.before_forward = [&](const Module&) { ++calls; }};
    AddHooks(model.block(0).up, hooks);
    AddHooks(model.block(0).down, hooks);
    Checkpoint(model.block(0), {.wrong_order = WrongOrder::kError});
    Initialize(model, world.device(), 1);
    Tape tape;
    const Recording on(tape);
    tape.Backward(Energy(model(InputOf(world.device(), 0), {0, 1})));
    EXPECT_EQ(calls, 2);
  });
}

}  // namespace
}  // namespace sherd::testing
