// Unused parts, hooks of windows, norms, failures of user code, and memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int64_t kC = ShardBlock::kChannels;

uint64_t RankOf(const World& world) { return static_cast<uint64_t>(world.rank()); }

// The loss of the input of a rank in a step, over the given blocks.
Variable LossOf(ShardModel& model, const Device& device, uint64_t input, int step,
                const std::vector<int>& order) {
  return Energy(
      model(InputOf(device, static_cast<int>(input), static_cast<uint64_t>(step)), order));
}

// Two layers whose results are both returned, or the first alone is used.
class Double : public Module {
 public:
  Double() {
    RegisterModule("first", first);
    RegisterModule("second", second);
  }
  std::pair<Variable, Variable> operator()(const Variable& x) {
    return Call(
        *this,
        [](Double& self, const Variable& x) { return std::pair(self.first(x), self.second(x)); },
        x);
  }
  LinearLayer first{kC, kC, Initializer::Normal(0.4), DType::kF64};
  LinearLayer second{kC, kC, Initializer::Normal(0.4), DType::kF64};
};

// Both outputs in the first three steps, then only the first.
TEST(FsdpUnused, AnOutputThatIsNotUsedAnyMore) {
  const auto train = [](World& world, int all, bool sharded, bool reshard) {
    Double model;
    if (sharded) {
      FullyShard(model.first, world.mesh(), {.reshard_after_forward = reshard});
      FullyShard(model.second, world.mesh(), {.reshard_after_forward = reshard});
      FullyShard(model, world.mesh(), {.reshard_after_forward = reshard});
    }
    Initialize(model, world.device(), 1);
    AdamW optimizer(model.parameters(), {.eps = 1e-4});
    Accumulation accumulation(model, {.micro_batches = all / world.size()});
    Tape tape;
    std::vector<Whole> values;
    for (int step = 0; step < 10; ++step) {
      std::vector<uint64_t> inputs;
      for (int r = 0; r < all; ++r) {
        if (world.size() == 1 || r == world.rank()) inputs.push_back(static_cast<uint64_t>(r));
      }
      RunWindow(accumulation, optimizer, tape, inputs,
                [&](uint64_t i) {
                  const auto [a, b] = model(
                      InputOf(world.device(), static_cast<int>(i), static_cast<uint64_t>(step)));
                  return step < 3 ? Add(Energy(a), Energy(b)) : Energy(a);
                },
                {.learning_rate = 0.05});
      values.push_back(ValuesOf(model, sharded ? &world.group() : nullptr));
    }
    EXPECT_EQ(values[9].at("second.weight"), values[2].at("second.weight")) << "bits";
    EXPECT_NE(values[9].at("first.weight"), values[2].at("first.weight"));
    return values;
  };
  for (int ranks : {1, 2, 3}) {
    std::vector<Whole> want;
    RunRanks(1, [&](World& world) { want = train(world, ranks, false, false); });
    for (bool reshard : {true, false}) {
      RunRanks(ranks, [&](World& world) {
        const std::vector<Whole> got = train(world, ranks, true, reshard);
        for (size_t step = 0; step < got.size(); ++step) ExpectClose(got[step], want[step], 1e-9);
      });
    }
  }
}

// Blocks are one unit with the rest: block 1 is nobody's in step 1 (decay does not touch it either)
// and the last rank's alone in step 2.
TEST(FsdpUnused, PartsOfAUnitOnNoRankAndOnOneRank) {
  const auto order = [](int step, int rank, int all) {
    const bool uses = step == 0 || (step == 2 && rank == all - 1);
    return uses ? std::vector<int>{0, 1} : std::vector<int>{0};
  };
  const auto train = [&](World& world, int all, const Stage* stage) {
    ShardModel model(2);
    if (stage != nullptr) FullyShard(model, world.mesh(), {.stage = *stage});
    Initialize(model, world.device(), 1);
    PoisonFreeMemory(world.device());
    AdamW optimizer(model.parameters(), {.eps = 1e-4, .weight_decay = 0.3});
    Accumulation accumulation(model, {.micro_batches = all / world.size()});
    Tape tape;
    std::vector<Whole> values;
    for (int step = 0; step < 10; ++step) {
      std::vector<uint64_t> inputs;
      for (int r = 0; r < all; ++r) {
        if (world.size() == 1 || r == world.rank()) inputs.push_back(static_cast<uint64_t>(r));
      }
      RunWindow(accumulation, optimizer, tape, inputs,
                [&](uint64_t i) {
                  return LossOf(model, world.device(), i, step,
                                order(step, static_cast<int>(i), all));
                },
                {.learning_rate = 0.05, .clip = 2.0});
      values.push_back(ValuesOf(model, stage != nullptr ? &world.group() : nullptr));
    }
    EXPECT_EQ(values[1].at("block1.up.weight"), values[0].at("block1.up.weight")) << "bits";
    EXPECT_NE(values[2].at("block1.up.weight"), values[1].at("block1.up.weight"));
    return values;
  };
  for (int ranks : {1, 2, 3}) {
    std::vector<Whole> want;
    RunRanks(1, [&](World& world) { want = train(world, ranks, nullptr); });
    for (const Stage& stage : {kZero3, kZero2, kZero1, kDataParallel}) {
      RunRanks(ranks, [&](World& world) {
        const std::vector<Whole> got = train(world, ranks, &stage);
        for (size_t step = 0; step < got.size(); ++step) ExpectClose(got[step], want[step], 1e-9);
      });
    }
  }
}

enum class Order { kNone, kInside, kOutside };

// With k calls of each block, m micro-batches and recomputes, each hook runs once in each window,
// in the order of the parameters, sees the mean of all ranks, and what it makes of it is used.
TEST(FsdpHooks, RunOnceInEachWindowOnTheWholeGradient) {
  const std::vector<int> calls = {0, 1, 0, 0};
  for (int ranks : {1, 2}) {
    for (int64_t micro_batches : {1, 3}) {
      for (Order order : {Order::kNone, Order::kInside, Order::kOutside}) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", micro_batches, " micro-batches, order ",
                                  static_cast<int>(order)));
        const auto input = [&](int rank, int64_t k) {
          return static_cast<uint64_t>(rank + ranks * k);
        };
        Whole want;
        {
          ShardModel plain(2);
          const Device device = Device::Cpu();
          Initialize(plain, device, 1);
          Tape tape;
          const double items = static_cast<double>(kItems * ranks * micro_batches);
          for (int64_t i = 0; i < ranks * micro_batches; ++i) {
            const Recording on(tape);
            tape.Backward(LossOf(plain, device, static_cast<uint64_t>(i), 0, calls), 1.0 / items);
            tape.Reset();
          }
          want = GradientsOf(plain, nullptr);
        }
        RunRanks(ranks, [&](World& world) {
          ShardModel model(2);
          for (auto& block : model.blocks) {
            if (order == Order::kInside) Checkpoint(*block);
            FullyShard(*block, world.mesh());
            if (order == Order::kOutside) Checkpoint(*block);
          }
          FullyShard(model, world.mesh());
          Initialize(model, world.device(), 1);
          std::vector<std::string> ran;
          Whole seen;
          for (const Parameter& p : model.parameters()) {
            p.OnWindowGradient([&](const Parameter& q) {
              ran.push_back(q.name());
              std::vector<double> whole(static_cast<size_t>(q.numel()), 0.0);
              const std::vector<double> piece = q.local_grad().ToHost<double>();
              std::copy(piece.begin(), piece.end(), whole.begin() + q.local_offset());
              world.group().AllReduce(whole.data(), q.numel(), DType::kF64);
              seen[q.name()] = whole;
              kernels::Scale(q.local_grad(), 2.0, q.local_grad());
            });
          }
          KeepGradients optimizer(model, &world.group());
          Accumulation accumulation(model, {.micro_batches = micro_batches});
          Tape tape;
          for (int window = 1; window <= 2; ++window) {
            ran.clear();
            std::vector<uint64_t> inputs;
            for (int64_t k = 0; k < micro_batches; ++k) inputs.push_back(input(world.rank(), k));
            RunWindow(accumulation, optimizer, tape, inputs,
                      [&](uint64_t i) { return LossOf(model, world.device(), i, 0, calls); }, {});
            std::vector<std::string> names;
            for (const Parameter& p : model.parameters()) names.push_back(p.name());
            EXPECT_EQ(ran, names);
            ExpectClose(seen, want);
            Whole doubled = want;
            for (auto& [name, values] : doubled) {
              for (double& value : values) value *= 2;
            }
            ExpectClose(optimizer.gradients, doubled);
          }
        });
      }
    }
  }
}

TEST(FsdpHooks, AreRefusedBesideAnOptimizerInBackward) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh());
    Initialize(model, world.device(), 1);
    OptimizerInBackward optimizer(model, [](std::vector<Parameter> parameters) {
      return std::make_unique<AdamW>(std::move(parameters));
    });
    Accumulation accumulation(model, {.in_backward = &optimizer});
    model.head.weight().OnWindowGradient([](const Parameter&) {});
    Tape tape;
    const auto step = [&] {
      RunWindow(accumulation, optimizer, tape, {RankOf(world)},
                [&](uint64_t i) { return LossOf(model, world.device(), i, 0, {0}); }, {});
    };
    ExpectErrorHas(ErrorOf(step), {"[window]", "'head.weight'", "hook", "optimizer in backward"});
    model.head.weight().ClearHooks();
    EXPECT_EQ(ErrorOf(step), "no error");
  });
}

// On one axis and on two, five rounds without a step: the whole norm on every rank, one message,
// and afterwards a norm of at most the limit.
TEST(FsdpClip, EveryNormOnOneAxisAndOnTwo) {
  constexpr double kLimit = 0.5;
  for (const auto& [ranks, inside] : {std::pair(2, 2), std::pair(3, 3), std::pair(4, 2)}) {
    for (NormType type : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, norm ", static_cast<int>(type)));
      std::vector<Whole> want;
      for (int round = 0; round < 5; ++round) {
        want.push_back(PlainGradients(ranks, [&](ShardModel& m, const Device& d, int r) {
          return LossOf(m, d, static_cast<uint64_t>(r), round, {0, 2});
        }));
      }
      RunRecorded(ranks, [&](World& world, CollectiveLog& log) {
        ShardModel model;
        ShardAll(model, world.MakeMesh(inside), Sums());
        Initialize(model, world.device(), 1);
        Tape tape;
        for (int round = 0; round < 5; ++round) {
          {
            const Recording on(tape);
            tape.Backward(LossOf(model, world.device(), RankOf(world), round, {0, 2}));
            tape.Reset();
          }
          const Whole& whole = want[static_cast<size_t>(round)];
          const double norm = PlainNorm(whole, type);
          ASSERT_GT(norm, kLimit);
          FinishGradients(model);
          ContextOf(model)->WaitReductions(0);
          log.Clear();
          EXPECT_NEAR(ClipGradNorm(model, kLimit, {.norm_type = type}), norm, 1e-12 * norm);
          EXPECT_EQ(log.count(CollectiveOp::kAllReduce), 1);
          const Whole clipped = GradientsOf(model, &world.group());
          EXPECT_LE(PlainNorm(clipped, type), kLimit);
          EXPECT_GT(PlainNorm(clipped, type), 0.99 * kLimit);
          for (const auto& [name, values] : clipped) EXPECT_NE(values, whole.at(name)) << name;
          for (const Parameter& p : model.parameters()) p.ClearGrad();
        }
      });
    }
  }
}

int64_t HeldBytes(World& world) { return world.device().allocator().stats().total.current_bytes; }

// Units, tapes, windows, optimizers and gathers ahead: with the model all of it goes.
TEST(FsdpMemory, NothingIsLeftOfADeletedModel) {
  for (const auto& [ranks, inside] : {std::pair(1, 1), std::pair(2, 2), std::pair(4, 2)}) {
    for (const Stage& stage : {kZero3, kZero1, kDataParallel, kHybridOptimizer}) {
      RunRanks(ranks, [&](World& world) {
        const Mesh mesh = world.MakeMesh(inside);
        const int64_t before = HeldBytes(world);
        {
          ShardModel model;
          for (auto& block : model.blocks) {
            FullyShard(Checkpoint(*block), mesh, {.prefetch = 2, .stage = stage});
          }
          FullyShard(model, mesh, {.stage = stage});
          Initialize(model, world.device(), 1);
          AdamW optimizer(model.parameters());
          Tape tape;
          {
            Accumulation accumulation(model);
            for (int step = 0; step < 2; ++step) {
              RunWindow(accumulation, optimizer, tape, {RankOf(world)},
                        [&](uint64_t i) {
                          return LossOf(model, world.device(), i, step, {0, 1, 2});
                        },
                        {});
            }
          }
          // A gather that nobody has waited for, a forward without its backward, and gradients.
          StartUnshard(model.block(1));
          const Recording on(tape);
          tape.Backward(LossOf(model, world.device(), RankOf(world), 0, {0}));
          LossOf(model, world.device(), RankOf(world), 0, {2});
          StartUnshard(model.block(0));
          EXPECT_GT(HeldBytes(world), before);
        }
        EXPECT_EQ(HeldBytes(world), before);
      });
    }
  }
}

TEST(FsdpMemory, EvaluationIsFlatAndLeavesEveryUnitSharded) {
  for (int ranks : {1, 2, 3}) {
    RunRanks(ranks, [](World& world) {
      ShardModel model;
      ShardAll(model, world.mesh(), {.reshard_after_forward = false, .prefetch = 2});
      Initialize(model, world.device(), 1);
      const int64_t before = HeldBytes(world);
      std::vector<int64_t> peaks;
      for (int k = 0; k < 5; ++k) {
        world.device().allocator().ResetPeaks();
        model(InputOf(world.device(), world.rank()), {0, 1, 2, 1});
        peaks.push_back(world.device().allocator().stats().total.peak_bytes);
        EXPECT_EQ(HeldBytes(world), before);
        for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
      }
      // The first gathers nothing ahead.
      for (size_t k = 2; k < peaks.size(); ++k) EXPECT_EQ(peaks[k], peaks[1]);
    });
  }
}

// User code throws between a forward and its backward, outside of every call: what the forward left
// is dropped with the tape, and the next steps are right.
TEST(FsdpFailure, UserCodeThrowsBetweenForwardAndBackward) {
  for (int ranks : {1, 2}) {
    for (const FullyShardOptions& options :
         {FullyShardOptions{}, FullyShardOptions{.reshard_after_forward = false},
          FullyShardOptions{.reduce_once = true}}) {
      const Whole want = PlainGradients(ranks, [](ShardModel& m, const Device& d, int r) {
        return LossOf(m, d, static_cast<uint64_t>(r), 1, {0, 1, 0});
      });
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums(options));
        Initialize(model, world.device(), 1);
        PoisonFreeMemory(world.device());
        Tape tape;
        try {
          const Recording on(tape);
          LossOf(model, world.device(), RankOf(world), 0, {0, 1, 2, 0});
          throw std::runtime_error("the data ended");
        } catch (const std::runtime_error&) {
          tape.Reset();
        }
        const Recording on(tape);
        tape.Backward(LossOf(model, world.device(), RankOf(world), 1, {0, 1, 0}));
        ExpectClose(GradientsOf(model, &world.group()), want);
        for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
      });
    }
  }
}

// Between two micro-batches: the half window is refused by the next one until Recover drops it.
TEST(FsdpFailure, UserCodeThrowsBetweenMicroBatches) {
  for (int ranks : {1, 2}) {
    for (WindowSync sync : {WindowSync::kCutEach, WindowSync::kFullEach}) {
      std::vector<uint64_t> inputs;
      const Whole sum = PlainGradients(ranks, [](ShardModel& m, const Device& d, int r) {
        return Add(LossOf(m, d, static_cast<uint64_t>(r), 0, {0, 1}),
                   LossOf(m, d, static_cast<uint64_t>(10 + r), 0, {0, 1}));
      });
      Whole want = sum;
      for (auto& [name, values] : want) {
        for (double& value : values) value /= static_cast<double>(2 * kItems * ranks);
      }
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh());
        Initialize(model, world.device(), 1);
        KeepGradients optimizer(model, &world.group());
        Accumulation accumulation(model, {.micro_batches = 2, .sync = sync});
        Tape tape;
        bool throws = true;
        const auto step = [&] {
          RunWindow(accumulation, optimizer, tape, {RankOf(world), 10 + RankOf(world)},
                    [&](uint64_t i) {
                      if (throws && i >= 10) ThrowInvalidArgument("the data ended");
                      return LossOf(model, world.device(), i, 0, {0, 1});
                    },
                    {});
        };
        ExpectErrorHas(ErrorOf(step), {"the data ended"});
        tape.Reset();
        throws = false;
        ExpectErrorHas(ErrorOf(step), {"still holds a gradient", "Recover()"});
        EXPECT_EQ(ErrorOf([&] { Recover(model); }), "no error");
        EXPECT_EQ(ErrorOf(step), "no error");
        ExpectClose(optimizer.gradients, want);
      });
    }
  }
}

}  // namespace
}  // namespace sherd::testing
