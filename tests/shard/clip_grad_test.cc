// Norms and clipping of sharded gradients against plain f64 sums over whole gradients.

#include "sherd/shard/clip_grad.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "sherd/runtime/comm/recording_group.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

constexpr NormType kTypes[] = {NormType::kOne, NormType::kTwo, NormType::kInf};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Whole Scaled(Whole gradients, double factor) {
  for (auto& [name, values] : gradients) {
    for (double& value : values) value *= factor;
  }
  return gradients;
}

// A small weight of one element, a weight that is used twice, and a bias: with four ranks some
// pieces are empty.
class TiedModel : public Module {
 public:
  TiedModel() {
    for (auto& [name, layer] : {std::pair<const char*, LinearLayer*>{"first", &first},
                                {"scalar", &scalar},
                                {"last", &last}}) {
      RegisterModule(name, *layer);
    }
    RegisterTied(first.weight());
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](TiedModel& self, const Variable& x) {
          const Variable y = self.first(Silu(self.first(x)));
          return Add(Sum(self.last(y)), Sum(self.scalar(Reshape(Sum(y), {1, 1}))));
        },
        x);
  }
  LinearLayer first{5, 5, Initializer::Normal(0.4), DType::kF64};
  LinearLayer scalar{1, 1, Initializer::Normal(0.4), DType::kF64};
  LinearLayer last{5, 3, Initializer::Normal(0.4), DType::kF64};
};

// Every norm, and one clipping by it, of what the model's gradients are now. COLLECTIVE.
void ExpectNormsAndClip(Module& model, World& world, const Whole& want) {
  for (NormType type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    const double norm = PlainNorm(want, type);
    ASSERT_GT(norm, 0.0);
    EXPECT_NEAR(ClipGradNorm(model, kInfinity, {.norm_type = type}), norm, 1e-13 * norm);
    EXPECT_NEAR(ClipGradNorm(model, 2 * norm, {.norm_type = type}), norm, 1e-13 * norm);
  }
  ExpectClose(GradientsOf(model, &world.group(), false), want, 0.0);
  const double norm = PlainNorm(want, NormType::kTwo);
  EXPECT_NEAR(ClipGradNorm(model, 0.25 * norm), norm, 1e-13 * norm);
  // torch.nn.utils.clip_grad_norm_: max_norm / (total_norm + 1e-6).
  const Whole clipped = Scaled(want, 0.25 * norm / (norm + 1e-6));
  ExpectClose(GradientsOf(model, &world.group(), false), clipped, 1e-14);
  EXPECT_NEAR(ClipGradNorm(model, kInfinity), PlainNorm(clipped, NormType::kTwo), 1e-13 * norm);
}

TEST(ClipGradNormTest, CountsEveryElementOnceOverUnits) {
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    RunRanks(ranks, [](World& world) {
      ShardModel model;
      model.block(2).up.weight().set_requires_grad(false);
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      PoisonFreeMemory(world.device());
      Tape tape;
      {
        const Recording on(tape);
        // Block 1 has no gradient.
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 2, 0})));
      }
      ExpectNormsAndClip(model, world, GradientsOf(model, &world.group()));
    });
  }
}

TEST(ClipGradNormTest, CountsTiedWeightsOnceAndEmptyPiecesNothing) {
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    RunRanks(ranks, [](World& world) {
      TiedModel model;
      FullyShard(model.scalar, world.mesh(), Sums());
      FullyShard(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      {
        const Recording on(tape);
        tape.Backward(model(InputOf(world.device(), world.rank())));
      }
      ExpectNormsAndClip(model, world, GradientsOf(model, &world.group()));
    });
  }
}

TEST(ClipGradNormTest, CountsWhatAllRanksHoldOnce) {
  for (int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    RunRanks(ranks, [](World& world) {
      ShardModel model(2);
      FullyShard(model.block(0), world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      {
        const Recording on(tape);
        // The same input on all ranks, so what is in no unit has one gradient.
        tape.Backward(Energy(model(InputOf(world.device(), 7), {0, 1})));
      }
      ExpectNormsAndClip(model, world, GradientsOf(model, &world.group()));
    });
  }
}

TEST(ClipGradNormTest, CountsOneOfSeveralCopies) {
  for (const Stage& stage : {kZero3, kZero1, kDataParallel, kHybridOptimizer, kZero3Everywhere}) {
    for (int copies : {2, 4}) {
      RunRanks(4, [&](World& world) {
        const Mesh mesh = world.MakeMesh(world.size() / copies);
        ShardModel model(2);
        for (auto& block : model.blocks) FullyShard(*block, mesh, Sums({.stage = stage}));
        FullyShard(model, mesh, Sums({.stage = stage}));
        Initialize(model, world.device(), 1);
        Tape tape;
        {
          const Recording on(tape);
          tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 1})));
        }
        ExpectNormsAndClip(model, world, GradientsOf(model, &world.group()));
      });
    }
  }
}

TEST(ClipGradNormTest, FinishesWhatABackwardHasLeft) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    for (Unit* unit : UnitsOf(model)) unit->SetSync(GradientSync::kNone);
    Tape tape;
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0})));
    }
    const double norm = ClipGradNorm(model, kInfinity);
    const double want = PlainNorm(GradientsOf(model, &world.group()), NormType::kTwo);
    ASSERT_GT(want, 0.0);
    EXPECT_NEAR(norm, want, 1e-13 * want);
  });
}

TEST(ClipGradNormTest, CountsWhatOnlyOtherRanksUsed) {
  RunRanks(2, [](World& world) {
    ShardModel model(2);
    FullyShard(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Tape tape;
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {world.rank()})));
    }
    const double norm = ClipGradNorm(model, kInfinity);
    const double want = PlainNorm(GradientsOf(model, &world.group()), NormType::kTwo);
    EXPECT_NEAR(norm, want, 1e-13 * want);
  });
}

TEST(ClipGradNormTest, WithoutUnitsNeedsNoGroup) {
  ShardModel model(1);
  const Device device = Device::Cpu();
  Initialize(model, device, 1);
  Tape tape;
  const Recording on(tape);
  tape.Backward(Energy(model(InputOf(device, 0), {0})));
  const double want = PlainNorm(GradientsOf(model, nullptr), NormType::kTwo);
  EXPECT_NEAR(ClipGradNorm(model, 1.0), want, 1e-13 * want);
  EXPECT_NEAR(ClipGradNorm(model, 1.0), want / (want + 1e-6), 1e-13);
}

// One bad element on one rank is known to all, and no gradient changes.
TEST(ClipGradNormTest, ANormThatIsNotFiniteScalesNothing) {
  for (double bad : {std::nan(""), kInfinity, -kInfinity}) {
    for (NormType type : kTypes) {
      RunRanks(3, [&](World& world) {
        ShardModel model(1);
        ShardAll(model, world.mesh(), Sums());
        Initialize(model, world.device(), 1);
        Tape tape;
        {
          const Recording on(tape);
          tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0})));
        }
        const Tensor piece = UnitOf(model.block(0))->HeldGradient(1);
        if (world.rank() == 1) piece.data<double>()[0] = bad;
        const std::vector<double> before = UnitOf(model)->HeldGradient(0).ToHost<double>();
        const double norm = ClipGradNorm(model, 1e-3, {.norm_type = type});
        EXPECT_EQ(std::isnan(norm), std::isnan(bad));
        EXPECT_FALSE(std::isfinite(norm));
        EXPECT_EQ(UnitOf(model)->HeldGradient(0).ToHost<double>(), before);
      });
    }
  }
}

TEST(ClipGradNormTest, SendsOneSmallMessage) {
  for (NormType type : kTypes) {
    const auto log = std::make_shared<CollectiveLog>();
    RankOptions options;
    options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
      return MakeRecordingGroup(std::move(group), log);
    };
    RunRanks(
        3,
        [&](World& world) {
          ShardModel model(1);
          ShardAll(model, world.mesh(), Sums());
          EXPECT_EQ(ClipGradNorm(model, 1.0, {.norm_type = type}), 0.0);
        },
        options);
    EXPECT_EQ(log->count(CollectiveOp::kAllReduce), 3);
    EXPECT_EQ(log->bytes(CollectiveOp::kAllReduce), 3 * 8 * (type == NormType::kInf ? 3 : 1));
  }
}

TEST(ClipGradNormTest, PartsHaveASlotForEachRankOnlyForTheMaximum) {
  const Device device = Device::Cpu();
  ShardModel model(1);
  Initialize(model, device, 1);
  Tape tape;
  const Recording on(tape);
  tape.Backward(Energy(model(InputOf(device, 0), {0})));
  const double most = PlainNorm(GradientsOf(model, nullptr), NormType::kInf);
  std::vector<double> slots(3, 9.0);
  LocalNormPart(model, NormType::kInf, 0, slots);
  EXPECT_EQ(slots, (std::vector<double>{most, 0.0, 0.0}));
  LocalNormPart(model, NormType::kInf, 2, slots);
  EXPECT_EQ(slots, std::vector<double>(3, 0.0)) << "what no unit has is rank 0's";
  EXPECT_EQ(TotalNorm(NormType::kInf, std::vector<double>{1.0, 4.0, 3.0}), 4.0);
  EXPECT_EQ(TotalNorm(NormType::kTwo, std::vector<double>{16.0}), 4.0);
  EXPECT_EQ(TotalNorm(NormType::kOne, std::vector<double>{16.0}), 16.0);
}

TEST(ClipGradNormTest, CoefficientIsPyTorchs) {
  EXPECT_EQ(ClipCoefficient(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(ClipCoefficient(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(ClipCoefficient(0.0, 0.0), 0.0);
  EXPECT_EQ(ClipCoefficient(kInfinity, 1.0), 1.0);
}

TEST(ClipGradNormTest, RefusesAMaximumThatIsNone) {
  ShardModel model(1);
  EXPECT_TRUE(Contains(ErrorOf([&] { ClipGradNorm(model, -1.0); }), "0 or more, got -1"));
  EXPECT_TRUE(Contains(ErrorOf([&] { ClipGradNorm(model, std::nan("")); }), "got nan"));
}

}  // namespace
}  // namespace sherd::testing
