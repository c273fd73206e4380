// Frozen parameters: the gradients of the rest are right, what does not train is never sent, and
// freezing is a thing of between steps.

#include <gtest/gtest.h>

#include <memory>
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

class BiasedLayer : public Module {
 public:
  BiasedLayer(int64_t in, int64_t out)
      : weight(RegisterParameter("weight", {out, in}, Initializer::Normal(0.4), DType::kF64)),
        bias(RegisterParameter("bias", {out}, Initializer::Normal(0.4), DType::kF64)) {}
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](BiasedLayer& self, const Variable& x) { return Linear(x, self.weight, self.bias); }, x);
  }
  Parameter weight, bias;
};

class BiasedMlp : public Module {
 public:
  BiasedMlp() {
    RegisterModule("up", up);
    RegisterModule("down", down);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](BiasedMlp& self, const Variable& x) { return Add(x, self.down(Silu(self.up(x)))); }, x);
  }
  BiasedLayer up{kC, 7}, down{7, kC};
};

class Stack : public Module {
 public:
  Stack() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_unique<BiasedMlp>());
      RegisterModule(absl::StrCat("block", i), *blocks.back());
    }
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Stack& self, const Variable& x) {
          Variable y = x;
          for (auto& block : self.blocks) y = (*block)(y);
          return y;
        },
        x);
  }
  std::vector<std::unique_ptr<BiasedMlp>> blocks;
};

void FreezeWeights(const Module& model) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.name().ends_with("weight")) parameter.set_requires_grad(false);
  }
}

enum class Order { kNone, kInside, kOutside };

void ShardStack(Stack& model, const Mesh& mesh, const FullyShardOptions& options, Order order) {
  for (auto& block : model.blocks) {
    if (order == Order::kInside) Checkpoint(*block);
    FullyShard(*block, mesh, Sums(options));
    if (order == Order::kOutside) Checkpoint(*block);
  }
  FullyShard(model, mesh, Sums(options));
}

Whole PlainBiasGradients(int ranks) {
  const Device device = Device::Cpu();
  Stack model;
  FreezeWeights(model);
  Initialize(model, device, 1);
  Tape tape;
  for (int rank = 0; rank < ranks; ++rank) {
    const Recording on(tape);
    tape.Backward(Energy(model(InputOf(device, rank))));
    tape.Reset();
  }
  return GradientsOf(model, nullptr);
}

// Each reduction has this rank's share of the biases of one block (12 elements), if the weights are
// frozen when the model is sharded; frozen later they stay in the biases' segment, which is reduced
// whole (12 + 70 elements).
TEST(Frozen, BiasesOnly) {
  for (int ranks : {1, 2, 3}) {
    const Whole want = PlainBiasGradients(ranks);
    EXPECT_EQ(want.size(), 6u);
    for (bool early : {true, false}) {
      for (bool reshard : {true, false}) {
        for (Order order : {Order::kNone, Order::kInside, Order::kOutside}) {
          SCOPED_TRACE(absl::StrCat(ranks, " ranks, early ", early, " reshard ", reshard, " order ",
                                    static_cast<int>(order)));
          RunRecorded(ranks, [&](World& world, CollectiveLog& log) {
            Stack model;
            if (early) FreezeWeights(model);
            ShardStack(model, world.mesh(), {.reshard_after_forward = reshard}, order);
            Initialize(model, world.device(), 1);
            if (!early) FreezeWeights(model);
            PoisonFreeMemory(world.device());
            Tape tape;
            const Recording on(tape);
            tape.Backward(Energy(model(InputOf(world.device(), world.rank()))));
            ExpectClose(GradientsOf(model, &world.group(), false), want);
            if (world.size() == 1) return;
            EXPECT_EQ(log.count(CollectiveOp::kReduceScatter), 3);
            const int64_t elems = early ? 12 : 12 + 70;
            EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter),
                      3 * 8 * ((elems + ranks - 1) / ranks));
          });
        }
      }
    }
  }
}

TEST(Frozen, NeitherSentNorHeldNorChangedByAStep) {
  RunRanks(2, [](World& world) {
    Stack model;
    FreezeWeights(model);
    ShardStack(model, world.mesh(), {}, Order::kNone);
    Initialize(model, world.device(), 1);
    const Whole before = ValuesOf(model, &world.group());
    AdamW optimizer(model.parameters());
    Accumulation accumulation(model);
    Tape tape;
    RunWindow(accumulation, optimizer, tape, {static_cast<uint64_t>(world.rank())},
              [&](uint64_t i) { return Energy(model(InputOf(world.device(), 0, i))); },
              {.learning_rate = 0.1});
    for (const auto& [name, values] : ValuesOf(model, &world.group())) {
      EXPECT_EQ(values == before.at(name), name.ends_with("weight")) << name;
    }
    // 6 elements of each block's biases on each of two ranks, in blocks of 64 bytes.
    const MemoryStats stats = world.device().allocator().stats();
    EXPECT_EQ(stats[MemoryCategory::kGradientShard].peak_bytes, 3 * 64);
    EXPECT_LE(stats[MemoryCategory::kGradient].peak_bytes, 3 * 128);
    // Two moments for each of the 18 bias elements this rank owns.
    EXPECT_LE(stats[MemoryCategory::kOptimizer].current_bytes, 2 * 3 * 64);
  });
}

// Six blocks, every other one frozen; an evaluation first; the last one is unfrozen on the way and
// the second frozen.
TEST(Frozen, AlternateUnitsThatChangeBetweenSteps) {
  constexpr int kSteps = 10;
  const std::vector<int> order = {0, 1, 2, 3, 4, 5};
  const auto freeze = [](ShardModel& model, int i, bool frozen) {
    for (const Parameter& p : model.block(i).parameters()) p.set_requires_grad(!frozen);
  };
  const auto train = [&](World& world, int ranks, bool reshard, CollectiveLog* log) {
    ShardModel model(6);
    for (int i : {1, 3, 5}) freeze(model, i, true);
    const bool sharded = world.size() == ranks && log != nullptr;
    if (sharded) ShardAll(model, world.mesh(), {.reshard_after_forward = reshard});
    Initialize(model, world.device(), 1);
    ProcessGroup* group = sharded ? &world.group() : nullptr;
    AdamW optimizer(model.parameters(), {.eps = 1e-4});
    Accumulation accumulation(model, {.micro_batches = sharded ? 1 : ranks});
    Tape tape;
    model(InputOf(world.device(), world.rank()), order);
    std::vector<Whole> values;
    for (int step = 0; step < kSteps; ++step) {
      if (step == 5) freeze(model, 5, false);
      if (step == 6) freeze(model, 2, true);
      std::vector<uint64_t> inputs;
      for (int rank = 0; rank < ranks; ++rank) {
        if (!sharded || rank == world.rank()) inputs.push_back(static_cast<uint64_t>(rank));
      }
      if (log != nullptr) log->Clear();
      RunWindow(
          accumulation, optimizer, tape, inputs,
          [&](uint64_t i) {
            return Energy(model(
                InputOf(world.device(), static_cast<int>(i), static_cast<uint64_t>(step)), order));
          },
          {.learning_rate = 0.05});
      if (log != nullptr && ranks > 1) {
        // The head, and of the blocks 0, 2, 4; then also 5; then without 2.
        EXPECT_EQ(log->count(CollectiveOp::kReduceScatter), step == 5 ? 5 : 4) << "step " << step;
      }
      values.push_back(ValuesOf(model, group));
    }
    return values;
  };
  for (int ranks : {1, 2, 3}) {
    std::vector<Whole> want;
    RunRanks(1, [&](World& world) { want = train(world, ranks, true, nullptr); });
    for (bool reshard : {true, false}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, reshard ", reshard));
      RunRecorded(ranks, [&](World& world, CollectiveLog& log) {
        const std::vector<Whole> got = train(world, ranks, reshard, &log);
        for (size_t step = 0; step < kSteps; ++step) ExpectClose(got[step], want[step], 1e-9);
      });
    }
  }
}

// A block that is called three times with gradients and three times without, a frozen one between.
TEST(Frozen, CallsWithAndWithoutGradientsOfOneBlock) {
  const StepLoss loss = [](ShardModel& m, const Device& d, int r) {
    for (const Parameter& p : m.block(1).parameters()) p.set_requires_grad(false);
    Variable y = InputOf(d, r);
    for (int k = 0; k < 3; ++k) {
      const Variable constant = m.block(0)(y).Detach();
      y = Add(m.block(1)(m.block(0)(y)), constant);
    }
    return Energy(y);
  };
  for (int ranks : {1, 2, 3}) {
    const Whole want = PlainGradients(ranks, loss);
    EXPECT_EQ(want.size(), 3u);
    for (const FullyShardOptions& options :
         {FullyShardOptions{}, FullyShardOptions{.reshard_after_forward = false},
          FullyShardOptions{.reduce_once = true}}) {
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums(options));
        Initialize(model, world.device(), 1);
        PoisonFreeMemory(world.device());
        Tape tape;
        const Recording on(tape);
        tape.Backward(loss(model, world.device(), world.rank()));
        // The root was not called, so nobody says that the last call's backward was the last.
        FinishGradients(model);
        ExpectClose(GradientsOf(model, &world.group()), want);
      });
    }
  }
}

TEST(Frozen, ChangesInsideAStepAreErrorsThatNameTheParameter) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      ShardModel model(2);
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      const Parameter& up = model.block(0).up.weight();
      const auto backward = [&](GradientSync sync) {
        SetGradientSync(model, sync);
        Tape tape;
        const Recording on(tape);
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 1})));
      };
      {
        const UnitScope scope(model.block(0));
        ExpectErrorHas(ErrorOf([&] { up.set_requires_grad(false); }),
                       {"'block0.up.weight'", "unit 'block0'", "while a call"});
      }
      EXPECT_TRUE(up.requires_grad());
      for (GradientSync sync : {GradientSync::kNone, GradientSync::kFull}) {
        backward(sync);
        ExpectErrorHas(ErrorOf([&] { up.set_requires_grad(false); }),
                       {"'block0.up.weight'", "unit 'block0'", "is frozen while"});
        EXPECT_TRUE(up.requires_grad());
      }
      GradientsOf(model, nullptr);
      for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
      EXPECT_EQ(ErrorOf([&] { up.set_requires_grad(false); }), "no error");
      backward(GradientSync::kFull);
      EXPECT_FALSE(up.local_grad().defined());
      EXPECT_TRUE(model.block(0).down.weight().local_grad().defined());
    });
  }
}

// What is frozen between a forward and its backward has nowhere to put a gradient.
TEST(Frozen, AUnitFrozenBetweenForwardAndBackwardIsAnErrorOfTheBackward) {
  RunRanks(1, [](World& world) {
    ShardModel model(2);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Tape tape;
    {
      const Recording on(tape);
      const Variable loss = Energy(model(InputOf(world.device(), 0), {0, 1}));
      for (const Parameter& p : model.block(0).parameters()) p.set_requires_grad(false);
      ExpectErrorHas(ErrorOf([&] { tape.Backward(loss); }),
                     {"'block0.", "unit 'block0'", "frozen"});
    }
    Recover(model);
    tape.Reset();
    const Recording on(tape);
    tape.Backward(Energy(model(InputOf(world.device(), 0), {0, 1})));
    EXPECT_FALSE(model.block(0).up.weight().local_grad().defined());
    EXPECT_TRUE(model.block(1).up.weight().local_grad().defined());
  });
}

// A frozen matrix in bf16 beside small trained ones in f32, computed in bf16.
class Adapted : public Module {
 public:
  Adapted()
      : base(RegisterParameter("base", {9, 5}, Initializer::Normal(0.4), DType::kBF16)),
        down(RegisterParameter("down", {2, 5}, Initializer::Normal(0.4))),
        up(RegisterParameter("up", {9, 2}, Initializer::Normal(0.4))) {
    base.set_requires_grad(false);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Adapted& self, const Variable& x) {
          return Add(Linear(x, self.base), Linear(Linear(x, self.down), self.up));
        },
        x);
  }
  Parameter base, down, up;
};

Variable AdaptedLoss(Adapted& model, const Device& device, int rank) {
  const Variable x = Cast(
      NormalTensor(device, DType::kF32, {4, 5}, 7 + static_cast<uint64_t>(rank)), DType::kBF16);
  return Energy(Cast(model(x), DType::kF64));
}

TEST(Frozen, OfAdaptersOnlyTheTrainedSegmentIsReduced) {
  // One rank that takes the inputs of both in turn.
  Whole want;
  RunRanks(1, [&](World& world) {
    Adapted model;
    FullyShard(model, world.mesh(), Sums({.precision = kBf16}));
    Initialize(model, world.device(), 1);
    for (int rank = 0; rank < 2; ++rank) {
      Tape tape;
      const Recording on(tape);
      tape.Backward(AdaptedLoss(model, world.device(), rank));
    }
    want = GradientsOf(model, nullptr);
  });
  EXPECT_EQ(want.size(), 2u);
  RunRecorded(2, [&](World& world, CollectiveLog& log) {
    Adapted model;
    FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true, .precision = kBf16}));
    Initialize(model, world.device(), 1);
    PoisonFreeMemory(world.device());
    Tape tape;
    const Recording on(tape);
    tape.Backward(AdaptedLoss(model, world.device(), world.rank()));
    EXPECT_FALSE(model.base.local_grad().defined());
    // 10 + 18 trained elements in f32; gathered in bf16, 23 of 45 for each rank, and 14 of 28.
    model.up.local_grad();
    EXPECT_EQ(log.count(CollectiveOp::kReduceScatter), 1);
    EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter), 14 * 4);
    EXPECT_EQ(log.bytes(CollectiveOp::kAllGather), 2 * (23 + 14) * 2);
    ExpectClose(GradientsOf(model, &world.group()), want, 1e-5);
  });
}

}  // namespace
}  // namespace sherd::testing
