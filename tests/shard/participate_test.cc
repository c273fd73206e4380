// Modules that only some ranks call: the others take part in the gathers and reductions, compute
// nothing, and contribute what they have summed up before, or zeros.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

// i calls block i, -1 - i only participates in it.
using Order = std::vector<int>;

// What rank r does where its peers call these blocks: every rank calls some and misses others, no
// block is missed by all of two ranks, and the last of several ranks calls none in odd steps.
Order OrderOf(const std::vector<int>& blocks, int rank, int ranks, int step) {
  Order order;
  for (size_t place = 0; place < blocks.size(); ++place) {
    const bool idle = ranks > 1 && rank == ranks - 1 && step % 2 == 1;
    const bool called = rank == 0 && ranks > 1 && step % 2 == 1
                            ? true
                            : (static_cast<int>(place) + rank + step) % 2 == 0;
    order.push_back(called && !idle ? blocks[place] : -1 - blocks[place]);
  }
  return order;
}

// The same on the plain model, where nobody participates.
Order CallsOf(const Order& order) {
  Order calls;
  std::copy_if(order.begin(), order.end(), std::back_inserter(calls), [](int i) { return i >= 0; });
  return calls;
}

bool IsSharded(const ShardModel& model) { return UnitOf(model.head.weight()) != nullptr; }

Variable LossOfCall(ShardModel& model, const Device& device, int rank, const Order& order,
                    uint64_t input) {
  return Energy(model(InputOf(device, rank, input), IsSharded(model) ? order : CallsOf(order)));
}

// Where checkpoints are.
enum class Where { kNowhere, kInBlocks, kAroundBlocks, kInRoot, kAroundRoot };
constexpr Where kEverywhere[] = {Where::kNowhere, Where::kInBlocks, Where::kAroundBlocks,
                                 Where::kInRoot, Where::kAroundRoot};

void Wrap(ShardModel& model, const Mesh& mesh, Where where, const FullyShardOptions& options) {
  const CheckpointOptions quiet{.wrong_order = WrongOrder::kAllow};
  for (auto& block : model.blocks) {
    if (where == Where::kInBlocks) Checkpoint(*block, quiet);
    FullyShard(*block, mesh, options);
    if (where == Where::kAroundBlocks) Checkpoint(*block, quiet);
  }
  if (where == Where::kInRoot) Checkpoint(model, quiet);
  FullyShard(model, mesh, {.scale = options.scale});
  if (where == Where::kAroundRoot) Checkpoint(model, quiet);
}

struct Steps {
  int ranks = 2;
  int inside = 0;  // ranks along the shard axis; 0: all
  Where where = Where::kNowhere;
  int calls = 1;  // of the model, before each backward
  FullyShardOptions options = {};
  std::vector<GradientSync> syncs = {GradientSync::kFull};  // of each backward
};

const std::vector<int> kBlocks = {0, 1, 2, 1, 0};

Variable LossOf(ShardModel& model, const Device& device, int rank, const Steps& s, int step) {
  Variable loss;
  for (int call = 0; call < s.calls; ++call) {
    const Order order = OrderOf(kBlocks, rank, s.ranks, step + call);
    const Variable one =
        LossOfCall(model, device, rank, order, static_cast<uint64_t>(10 * step + call));
    loss = loss.defined() ? Add(loss, one) : one;
  }
  return loss;
}

void ExpectReference(const Steps& s) {
  SCOPED_TRACE(absl::StrCat(s.ranks, " ranks, ", s.inside, " inside, checkpoint ",
                            static_cast<int>(s.where), ", ", s.calls, " calls, ", s.syncs.size(),
                            " backwards"));
  const Whole want = PlainGradients(s.ranks, [&](ShardModel& m, const Device& d, int r) {
    Variable sum = LossOf(m, d, r, s, 0);
    for (size_t step = 1; step < s.syncs.size(); ++step) {
      sum = Add(sum, LossOf(m, d, r, s, static_cast<int>(step)));
    }
    return sum;
  });
  RunRanks(s.ranks, [&](World& world) {
    ShardModel model;
    Wrap(model, s.inside == 0 ? world.mesh() : world.MakeMesh(s.inside), s.where, Sums(s.options));
    Initialize(model, world.device(), 1);
    PoisonFreeMemory(world.device());
    Tape tape;
    for (size_t step = 0; step < s.syncs.size(); ++step) {
      SetGradientSync(model, s.syncs[step]);
      const Recording on(tape);
      tape.Backward(LossOf(model, world.device(), world.rank(), s, static_cast<int>(step)));
      tape.Reset();
    }
    FinishGradients(model);
    ExpectClose(GradientsOf(model, &world.group()), want);
    if (!s.options.reshard_after_backward) return;
    for (const Unit* unit : UnitsOf(model)) {
      EXPECT_FALSE(unit->axes().parameters_are_cut && unit->unsharded()) << unit->name();
    }
  });
}

TEST(Participate, GradientsAreThePlainOnesWhereverCheckpointsAre) {
  for (int ranks : {1, 2, 3, 4}) {
    for (Where where : kEverywhere) {
      for (int calls : {1, 3}) {
        ExpectReference({.ranks = ranks, .where = where, .calls = calls});
        ExpectReference({.ranks = ranks,
                         .where = where,
                         .calls = calls,
                         .options = {.reshard_after_forward = false}});
      }
    }
  }
}

constexpr auto kNone = GradientSync::kNone, kCut = GradientSync::kCutOnly,
               kFull = GradientSync::kFull;

TEST(Participate, SeveralBackwardsUnderEveryPatternOfSynchronisationAndStage) {
  const std::vector<GradientSync> patterns[] = {{kFull, kFull, kFull},
                                                {kCut, kCut, kFull},
                                                {kNone, kNone, kFull},
                                                {kNone, kCut, kNone, kNone}};
  int turn = 0;
  for (const auto& [ranks, inside] : {std::pair(2, 2), std::pair(3, 3), std::pair(4, 2)}) {
    for (const std::vector<GradientSync>& syncs : patterns) {
      for (const Stage& stage : {kZero3, kZero2, kDataParallel, kHybridOptimizer}) {
        ExpectReference({.ranks = ranks,
                         .inside = inside,
                         .where = kEverywhere[turn++ % 5],
                         .options = {.stage = stage},
                         .syncs = syncs});
      }
    }
  }
}

TEST(Participate, WithEveryOtherWayToKeepAUnit) {
  for (const FullyShardOptions& options :
       {FullyShardOptions{.reshard_after_backward = false}, FullyShardOptions{.reduce_once = true},
        FullyShardOptions{.prefetch = 0}, FullyShardOptions{.prefetch = 3, .offload = true}}) {
    for (Where where : kEverywhere) {
      ExpectReference({.ranks = 3,
                       .where = where,
                       .calls = 2,
                       .options = options,
                       .syncs = {kFull, kNone, kFull}});
    }
  }
  ExpectReference({.ranks = 4, .calls = 2, .options = {.park = 2}, .syncs = {kFull, kFull}});
}

// Rank 1 calls the block in the first backward, which sends nothing, and only participates in the
// second, which does.
TEST(Participate, ContributesWhatWasSummedUpBefore) {
  for (Where where : kEverywhere) {
    SCOPED_TRACE(static_cast<int>(where));
    const auto order_of = [](int rank, int step) {
      return Order{(rank == 1) == (step == 0) ? 0 : -1, 1};
    };
    const Whole want = PlainGradients(2, [&](ShardModel& m, const Device& d, int r) {
      return Add(LossOfCall(m, d, r, order_of(r, 0), 0), LossOfCall(m, d, r, order_of(r, 1), 1));
    });
    RunRanks(2, [&](World& world) {
      ShardModel model;
      Wrap(model, world.mesh(), where, Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      for (int step : {0, 1}) {
        SetGradientSync(model, step == 0 ? kNone : kFull);
        const Recording on(tape);
        tape.Backward(LossOfCall(model, world.device(), world.rank(), order_of(world.rank(), step),
                                 static_cast<uint64_t>(step)));
        tape.Reset();
      }
      EXPECT_FALSE(UnitOf(model.block(0))->gradients_pending());
      ExpectClose(GradientsOf(model, &world.group()), want);
    });
  }
}

TEST(Participate, GathersAndReducesAsOftenAsACallAndRecordsNoOp) {
  for (Where where : kEverywhere) {
    SCOPED_TRACE(static_cast<int>(where));
    RunRanks(2, [&](World& world) {
      ShardModel model;
      Wrap(model, world.mesh(), where, {.prefetch = 0});
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      const Order order = world.rank() == 0 ? Order{0, 1, 2} : Order{0, -2, 2};
      tape.Backward(LossOfCall(model, world.device(), world.rank(), order, 0));
      std::vector<int64_t> counts;
      for (const Unit* unit : UnitsOf(model)) {
        counts.push_back(unit->gathers());
        counts.push_back(unit->reductions());
      }
      std::vector<int64_t> all(2 * counts.size());
      world.group().AllGather(counts.data(), all.data(),
                              static_cast<int64_t>(counts.size() * sizeof(int64_t)));
      EXPECT_TRUE(std::equal(counts.begin(), counts.end(), all.begin()));
      EXPECT_TRUE(std::equal(counts.begin(), counts.end(),
                             all.begin() + static_cast<std::ptrdiff_t>(counts.size())));
      EXPECT_EQ(UnitOf(model.block(1))->reductions(), 1);
    });
  }
  RunRanks(2, [](World& world) {
    ShardModel model;
    Wrap(model, world.mesh(), Where::kNowhere, {});
    Initialize(model, world.device(), 1);
    Tape tape;
    const Recording on(tape);
    Participate(model.block(1));
    EXPECT_EQ(tape.ops(), 0);
    EXPECT_EQ(UnitOf(model.block(1))->gathers(), 1);
    EXPECT_FALSE(UnitOf(model.block(1))->unsharded());
  });
}

// Outside a Recording it gathers and reshards as an evaluation does.
TEST(Participate, InAnEvaluation) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    Wrap(model, world.mesh(), Where::kNowhere, {.reshard_after_forward = false});
    Initialize(model, world.device(), 1);
    const Order order = world.rank() == 0 ? Order{0, 1} : Order{-1, 1};
    LossOfCall(model, world.device(), world.rank(), order, 0);
    EXPECT_EQ(UnitOf(model.block(0))->gathers(), 1);
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  });
}

// A checkpointed function in which one rank has nothing to compute at all.
TEST(Participate, InARegionThatReturnsWhatItWasGiven) {
  for (bool leading : {true, false}) {
    SCOPED_TRACE(leading);
    const auto loss = [leading](ShardModel& m, const Device& d, int r) {
      ShardModel* const model = &m;
      const bool calls = r == 0;
      const bool sharded = UnitOf(m) != nullptr;
      const auto region = [model, calls, sharded](const Variable& x) -> Variable {
        if (calls) return model->block(1)(x);
        if (sharded) Participate(model->block(1));
        return x;
      };
      Variable y = InputOf(d, r);
      if (!leading) y = m.block(0)(y);
      y = Checkpoint({.wrong_order = WrongOrder::kAllow}, region, y);
      return Energy(m.block(2)(y));
    };
    ExpectPlainGradients(2, loss);
  }
}

// An expert that has a unit inside: a scope of its own around the participation inside.
class Expert : public Module {
 public:
  Expert() : last(ShardBlock::kChannels, 4, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("inner", inner);
    RegisterModule("last", last);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Expert& self, const Variable& x) { return self.last(self.inner(x)); }, x);
  }
  ShardBlock inner;
  LinearLayer last;
};

TEST(Participate, OfAnExpertWithUnitsInsideGoesIntoAUnitScope) {
  const auto loss_of = [](Expert& expert, ShardBlock& router, const Device& device, int rank) {
    const Variable x = router(InputOf(device, rank));
    if (rank != 1) return Energy(expert(x));
    if (UnitOf(expert) != nullptr) {
      const UnitScope scope(expert);
      Participate(expert.inner);
    }
    return Energy(x);
  };
  struct Model : Module {
    Model() {
      RegisterModule("router", router);
      RegisterModule("expert", expert);
    }
    ShardBlock router;
    Expert expert;
  };
  const Device device = Device::Cpu();
  Model plain;
  Initialize(plain, device, 1);
  Tape tape;
  for (int rank : {0, 1, 2}) {
    const Recording on(tape);
    tape.Backward(loss_of(plain.expert, plain.router, device, rank));
    tape.Reset();
  }
  const Whole want = GradientsOf(plain, nullptr);
  RunRanks(3, [&](World& world) {
    Model model;
    FullyShard(model.router, world.mesh(), Sums());
    FullyShard(model.expert.inner, world.mesh(), Sums());
    FullyShard(model.expert, world.mesh(), Sums({.reshard_after_forward = true}));
    Initialize(model, world.device(), 1);
    Tape own;
    const Recording on(own);
    own.Backward(loss_of(model.expert, model.router, world.device(), world.rank()));
    ExpectClose(GradientsOf(model, &world.group()), want);
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  });
}

// Notes the gradients it is given.
class Noting final : public Optimizer {
 public:
  Noting(const ShardModel& model, ProcessGroup* group)
      : parameters_(model.parameters()), model_(model), group_(group) {}
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Step(const StepOptions&) override { gradients = GradientsOf(model_, group_); }
  Whole gradients;

 private:
  std::vector<Parameter> parameters_;
  const ShardModel& model_;
  ProcessGroup* group_;
};

// With seeds of 1 the sums of gradients are those of the losses, each rank reporting an item in
// all.
TEST(Participate, InWindowsOfEverySync) {
  constexpr int kMicroBatches = 3;
  for (const int ranks : {2, 4}) {
    const Steps s{.ranks = ranks, .syncs = std::vector<GradientSync>(kMicroBatches, kFull)};
    const Whole want = PlainGradients(ranks, [&](ShardModel& m, const Device& d, int r) {
      Variable sum = LossOf(m, d, r, s, 0);
      for (int step = 1; step < kMicroBatches; ++step) sum = Add(sum, LossOf(m, d, r, s, step));
      return Scale(sum, 1.0 / (ranks * kMicroBatches));
    });
    for (const WindowSync sync :
         {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast, WindowSync::kCaller}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, sync ", static_cast<int>(sync)));
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        Wrap(model, world.MakeMesh(2), Where::kInBlocks, {});
        Initialize(model, world.device(), 1);
        Noting optimizer(model, &world.group());
        Accumulation accumulation(model, {.micro_batches = kMicroBatches, .sync = sync});
        int next = 0;
        auto window = accumulation.Next([&] { return std::optional<int>(next++); },
                                        [](int) { return int64_t{1}; });
        ASSERT_TRUE(window.has_value());
        Tape tape;
        for (const int step : *window) {
          if (sync == WindowSync::kCaller) SetGradientSync(model, step == 1 ? kNone : kCut);
          const Recording on(tape);
          window->Backward({LossOf(model, world.device(), world.rank(), s, step), 1});
        }
        window->Finish(optimizer, 1e-3);
        ExpectClose(optimizer.gradients, want);
      });
    }
  }
}

TEST(Participate, RefusesAModuleThatIsNoUnit) {
  RunRanks(1, [](World&) {
    LinearLayer layer(2, 2, Initializer::Constant(1.0));
    EXPECT_TRUE(Contains(ErrorOf([&] { Participate(layer); }), "[Participate]"));
  });
}

}  // namespace
}  // namespace sherd::testing
