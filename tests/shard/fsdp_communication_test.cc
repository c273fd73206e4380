// How many collectives forwards, backwards and micro-batches make, by hand counts, and that what is
// gathered and reduced is exact.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/model.h"
#include "tests/shard/recorded.h"

namespace sherd::testing {
namespace {

// What a phase sent, by kind.
struct Sent {
  int64_t gathers = 0, scatters = 0, reductions = 0, others = 0;
  friend bool operator==(const Sent&, const Sent&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Sent& s) {
    return out << "gathers " << s.gathers << ", reduce-scatters " << s.scatters << ", all-reduces "
               << s.reductions << ", others " << s.others;
  }
};

// Since the last call.
Sent TakeSent(CollectiveLog& log) {
  const Sent sent{log.count(CollectiveOp::kAllGather), log.count(CollectiveOp::kReduceScatter),
                  log.count(CollectiveOp::kAllReduce),
                  log.count(CollectiveOp::kBroadcast) + log.count(CollectiveOp::kBarrier)};
  log.Clear();
  return sent;
}

void Shard(ShardModel& model, const Mesh& mesh, const FullyShardOptions& options,
           std::optional<bool> root) {
  for (auto& block : model.blocks) FullyShard(*block, mesh, Sums(options));
  FullyShardOptions of_root = options;
  of_root.reshard_after_forward = root;
  of_root.park = root == false ? 0 : options.park;
  FullyShard(model, mesh, Sums(of_root));
}

const std::vector<int> kOrder = {0, 1, 2};
constexpr int64_t kBlocks = 3;

// Counts a forward and a backward; in between, `between` is called.
struct Phases {
  Sent forward, backward;
};
Phases Count(
    World& world, CollectiveLog& log, ShardModel& model,
    const std::function<void(ShardModel&)>& between = [](ShardModel&) {}) {
  log.Clear();
  Tape tape;
  const Recording on(tape);
  const Variable loss = Energy(model(InputOf(world.device(), world.rank()), kOrder));
  Phases phases;
  phases.forward = TakeSent(log);
  between(model);
  tape.Backward(loss);
  GradientsOf(model, nullptr);  // waits for reductions
  phases.backward = TakeSent(log);
  return phases;
}

TEST(FsdpCommunication, AForwardGathersEachUnitAndABackwardWhatWasFreed) {
  struct Case {
    bool blocks;
    std::optional<bool> root;
    int64_t backward_gathers;
  };
  for (const Case& c : {Case{true, true, kBlocks + 1}, Case{true, std::nullopt, kBlocks},
                        Case{true, false, kBlocks}, Case{false, std::nullopt, 0},
                        Case{false, true, 1}, Case{false, false, 0}}) {
    SCOPED_TRACE(absl::StrCat(c.blocks, " ", c.root.has_value(), c.root.value_or(false)));
    for (int ranks : {2, 3}) {
      RunRecorded(ranks, [&](World& world, CollectiveLog& log) {
        ShardModel model;
        Shard(model, world.mesh(), {.reshard_after_forward = c.blocks}, c.root);
        Initialize(model, world.device(), 1);
        for (int step = 0; step < 3; ++step) {  // prefetch changes when, not how often
          const Phases phases = Count(world, log, model);
          EXPECT_EQ(phases.forward, (Sent{.gathers = kBlocks + 1}));
          EXPECT_EQ(phases.backward,
                    (Sent{.gathers = c.backward_gathers, .scatters = kBlocks + 1}));
          // As after a step: old copies are worth nothing.
          for (const Parameter& p : model.parameters()) p.MutableLocal();
        }
      });
    }
  }
}

TEST(FsdpCommunication, ParkedParametersAreGatheredFromNeighboursOnly) {
  RunRecorded(4, [](World& world, CollectiveLog& log) {
    ShardModel model;
    Shard(model, world.mesh(), {.park = 2}, true);
    Initialize(model, world.device(), 1);
    const Phases phases = Count(world, log, model);
    // Forward across the pairs and within them, backward within them; reductions over both.
    EXPECT_EQ(phases.forward, (Sent{.gathers = 2 * (kBlocks + 1)}));
    EXPECT_EQ(phases.backward, (Sent{.gathers = kBlocks + 1, .scatters = 2 * (kBlocks + 1)}));
  });
}

TEST(FsdpCommunication, ReshardingByHandBetweenForwardAndBackward) {
  RunRecorded(2, [](World& world, CollectiveLog& log) {
    ShardModel model;
    Shard(model, world.mesh(), {.reshard_after_forward = false}, false);
    Initialize(model, world.device(), 1);
    const Phases phases = Count(world, log, model, [](ShardModel& model) {
      for (auto& block : model.blocks) Reshard(*block);
      Reshard(model);
    });
    EXPECT_EQ(phases.forward, (Sent{.gathers = kBlocks + 1}));
    EXPECT_EQ(phases.backward, (Sent{.gathers = kBlocks + 1, .scatters = kBlocks + 1}));
  });
}

TEST(FsdpCommunication, AGatherStartedByHandTakesThePlaceOfTheForwards) {
  RunRecorded(2, [](World& world, CollectiveLog& log) {
    ShardModel model;
    Shard(model, world.mesh(), {.prefetch = 0}, std::nullopt);
    Initialize(model, world.device(), 1);
    const auto gathers_of_step = [&](const std::function<void()>& before) {
      log.Clear();
      before();
      Tape tape;
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), kOrder)));
      return TakeSent(log).gathers;
    };
    const int64_t plain = gathers_of_step([] {});
    EXPECT_EQ(plain, 2 * kBlocks + 1);
    EXPECT_EQ(gathers_of_step([&] {
                StartUnshard(model);
                for (auto& block : model.blocks) StartUnshard(*block);
              }),
              plain);
    EXPECT_EQ(gathers_of_step([&] {
                StartUnshard(model.block(1));
                Reshard(model.block(1));
              }),
              plain + 1)
        << "given back unused";
  });
}

TEST(FsdpCommunication, UnitsMadeAndDroppedOneByOneLeaveNothing) {
  RunRecorded(2, [](World& world, CollectiveLog& log) {
    for (int k = 0; k < 8; ++k) {
      ShardBlock block;
      FullyShard(block, world.mesh(), Sums());
      Initialize(block, world.device(), 1);
      EXPECT_EQ(ContextOf(block)->units().size(), 1u);
      log.Clear();
      Tape tape;
      const Recording on(tape);
      tape.Backward(Energy(block(InputOf(world.device(), world.rank()))));
      GradientsOf(block, nullptr);
      EXPECT_EQ(TakeSent(log), (Sent{.gathers = 1, .scatters = 1}));
    }
  });
}

TEST(FsdpCommunication, ReshardingIsSetAtRunTime) {
  for (const bool reshard : {true, false}) {
    RunRecorded(2, [&](World& world, CollectiveLog& log) {
      ShardModel model;
      Shard(model, world.mesh(), {.reshard_after_forward = !reshard}, !reshard);
      Initialize(model, world.device(), 1);
      // Of one block, then of everything.
      SetReshardAfterForward(model.block(1), reshard);
      EXPECT_EQ(Count(world, log, model).backward,
                (Sent{.gathers = reshard ? 1 : kBlocks, .scatters = kBlocks + 1}));
      SetReshardAfterForward(model, reshard);
      EXPECT_EQ(Count(world, log, model).backward,
                (Sent{.gathers = reshard ? kBlocks + 1 : 0, .scatters = kBlocks + 1}));
    });
  }
}

TEST(FsdpCommunication, OneRankSendsNothing) {
  for (const FullyShardOptions& options :
       {FullyShardOptions{}, FullyShardOptions{.reshard_after_forward = false},
        FullyShardOptions{.offload = true}, FullyShardOptions{.stage = kDataParallel},
        FullyShardOptions{.precision = {.reduce = DType::kF32}},
        FullyShardOptions{.reduce_once = true}}) {
    RunRecorded(1, [&](World& world, CollectiveLog& log) {
      ShardModel model;
      Shard(model, world.mesh(), options, std::nullopt);
      Initialize(model, world.device(), 1);
      AdamW optimizer(model.parameters());
      for (int step = 0; step < 3; ++step) {
        SetGradientSync(model, step == 1 ? GradientSync::kNone : GradientSync::kFull);
        StartUnshard(model);
        const Phases phases = Count(world, log, model);
        EXPECT_EQ(phases.forward, Sent{});
        EXPECT_EQ(phases.backward, Sent{});
        FinishGradients(model);
        optimizer.Step({.learning_rate = 1e-2});
        for (const Parameter& p : model.parameters()) p.ClearGrad();
        EXPECT_EQ(TakeSent(log), Sent{});
      }
      GradientsOf(model, nullptr);
      double one = 1.0;
      world.group().AllReduce(&one, 1, DType::kF64);
      EXPECT_EQ(TakeSent(log), Sent{.reductions = 1}) << "the log sees what is sent";
    });
  }
}

// Which units synchronise only at the last micro-batch.
enum class Late { kAll, kRoot, kTwoBlocks };
constexpr int64_t kMicroBatches = 3;

struct Accumulated {
  int ranks, inside;
  bool reshard_forward, reshard_backward;
  Late late;
  GradientSync before;
};

void SetSync(ShardModel& model, const Accumulated& c, bool last) {
  SetGradientSync(model, GradientSync::kFull);
  if (last) return;
  if (c.late == Late::kTwoBlocks) {
    for (int b : {0, 1}) SetGradientSync(model.block(b), c.before);
    return;
  }
  SetGradientSync(model, c.before);
  if (c.late == Late::kAll) return;
  for (auto& block : model.blocks) SetGradientSync(*block, GradientSync::kFull);
}

Sent WantOf(const Accumulated& c) {
  constexpr int64_t units = kBlocks + 1;
  const int64_t late = c.late == Late::kAll ? units : c.late == Late::kRoot ? 1 : 2;
  // Each unit once at the end, and those that are not late at each micro-batch before.
  const int64_t full = units + (units - late) * (kMicroBatches - 1);
  Sent want;
  want.scatters = full + (c.before == GradientSync::kCutOnly ? late * (kMicroBatches - 1) : 0);
  want.reductions = c.inside < c.ranks ? full : 0;
  // With both kept one gather serves all; kept from one micro-batch to the next, the first forward
  // gathers and each backward; otherwise each forward, and each backward after a reshard.
  want.gathers = !c.reshard_forward   ? units * (c.reshard_backward ? kMicroBatches : 1)
                 : c.reshard_backward ? units * 2 * kMicroBatches
                                      : units * (1 + kMicroBatches);
  return want;
}

Variable MicroLoss(ShardModel& model, const Device& device, int rank, int64_t micro) {
  return Energy(model(InputOf(device, rank, static_cast<uint64_t>(micro)), kOrder));
}

void ExpectAccumulated(const Accumulated& c, const Whole& want) {
  RunRecorded(c.ranks, [&](World& world, CollectiveLog& log) {
    ShardModel model;
    Shard(
        model, world.MakeMesh(c.inside),
        {.reshard_after_forward = c.reshard_forward, .reshard_after_backward = c.reshard_backward},
        c.reshard_forward);
    Initialize(model, world.device(), 1);
    Tape tape;
    log.Clear();
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      SetSync(model, c, micro + 1 == kMicroBatches);
      const Recording on(tape);
      tape.Backward(MicroLoss(model, world.device(), world.rank(), micro));
      tape.Reset();
    }
    GradientsOf(model, nullptr);
    EXPECT_EQ(TakeSent(log), WantOf(c));
    ExpectClose(GradientsOf(model, &world.group()), want);
  });
}

TEST(FsdpCommunication, GradientAccumulationSendsWhatItsPatternSays) {
  for (const auto& [ranks, inside] : {std::pair(2, 2), std::pair(4, 2)}) {
    const Whole want = PlainGradients(ranks, [](ShardModel& model, const Device& device, int rank) {
      Variable sum = MicroLoss(model, device, rank, 0);
      for (int64_t micro = 1; micro < kMicroBatches; ++micro) {
        sum = Add(sum, MicroLoss(model, device, rank, micro));
      }
      return sum;
    });
    for (const Late late : {Late::kAll, Late::kRoot, Late::kTwoBlocks}) {
      for (const GradientSync before : {GradientSync::kNone, GradientSync::kCutOnly}) {
        for (int kept = 0; kept < 4; ++kept) {
          SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", inside, " inside, late ",
                                    static_cast<int>(late), ", before ", static_cast<int>(before),
                                    ", kept ", kept));
          ExpectAccumulated({ranks, inside, kept % 2 == 0, kept < 2, late, before}, want);
        }
      }
    }
  }
}

TEST(FsdpCommunication, OnlySomeUnitsStayGatheredBetweenMicroBatches) {
  RunRecorded(2, [](World& world, CollectiveLog& log) {
    ShardModel model;
    Shard(model, world.mesh(), {.reshard_after_forward = false}, false);
    SetReshardAfterBackward(model, false);
    for (auto& block : model.blocks) SetReshardAfterBackward(*block, true);
    Initialize(model, world.device(), 1);
    int64_t gathers = 0;
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      const Phases phases = Count(world, log, model);
      gathers += phases.forward.gathers + phases.backward.gathers;
    }
    EXPECT_EQ(gathers, kBlocks + 1 + kBlocks * (kMicroBatches - 1));
  });
}

// Shapes with odd sizes, and one parameter smaller than the number of ranks.
const Shape kShapes[] = {{17, 257}, {17},  {64, 312}, {64}, {64, 64},
                         {512, 64}, {256}, {64, 297}, {2}};

// The value of an element, exact in f32.
float ElementOf(int parameter, int64_t i) {
  return static_cast<float>((i * 31 + parameter * 7) % 4096) - 2048.0f;
}

void ExpectGathered(const Unit& unit) {
  for (int i = 0; i < unit.parameters(); ++i) {
    const std::vector<float> values = unit.full(i).ToHost<float>();
    for (size_t k = 0; k < values.size(); ++k) {
      ASSERT_EQ(values[k], ElementOf(i, static_cast<int64_t>(k))) << "parameter " << i;
    }
  }
}

TEST(FsdpCommunication, GathersAndReductionsOfOddShapesAreExact) {
  for (const auto& [ranks, park] : {std::pair(1, 0), std::pair(3, 0), std::pair(4, 0),
                                    std::pair(7, 0), std::pair(4, 2), std::pair(6, 3)}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks, park ", park));
    RunRanks(ranks, [park = park](World& world) {
      std::vector<UnitParameter> parameters;
      for (const Shape& shape : kShapes) {
        parameters.push_back({absl::StrCat("p", parameters.size()), shape});
      }
      Unit unit("odd", parameters, ShardContext::Of(world.mesh()), {.park = park});
      for (int i = 0; i < unit.parameters(); ++i) {
        for (int64_t k = 0; k < unit.local(i).numel(); ++k) {
          unit.local(i).data<float>()[k] = ElementOf(i, unit.local_offset(i) + k);
        }
      }
      unit.EnterForward(1);
      ExpectGathered(unit);
      unit.ExitForward(park > 0 ? AfterScope::kPark : AfterScope::kReshard);
      EXPECT_FALSE(unit.unsharded());
      unit.BeginBackward(1);
      ExpectGathered(unit);
      float sum = 0.0f;
      for (int rank = 0; rank < world.size(); ++rank) sum += static_cast<float>(rank % 8 + 1);
      for (int i = 0; i < unit.parameters(); ++i) {
        kernels::Fill(unit.TakeGradient(i).tensor, world.rank() % 8 + 1);
      }
      unit.EndBackward();
      for (int i = 0; i < unit.parameters(); ++i) {
        const std::vector<float> got = unit.LocalGradient(i).ToHost<float>();
        EXPECT_EQ(got, std::vector<float>(static_cast<size_t>(unit.local(i).numel()), sum))
            << "parameter " << i;
      }
    });
  }
}

}  // namespace
}  // namespace sherd::testing
