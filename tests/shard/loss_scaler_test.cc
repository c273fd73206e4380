// The scale by hand, as torch.cuda.amp.GradScaler moves it; and one verdict for all ranks.

#include "sherd/shard/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "sherd/shard/clip_grad.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LossScalerTest, StartsAsPyTorchDoes) {
  const LossScaler scaler;
  EXPECT_EQ(scaler.scale(), 65536.0);
  EXPECT_EQ(scaler.grad_scale(), 1.0 / 65536.0);
  EXPECT_EQ(scaler.options().growth_factor, 2.0);
  EXPECT_EQ(scaler.options().backoff_factor, 0.5);
  EXPECT_EQ(scaler.options().growth_interval, 2000);
}

TEST(LossScalerTest, GrowsAfterGoodStepsInARowAndBacksOffAtOnce) {
  LossScaler scaler(
      {.init_scale = 8.0, .growth_factor = 4.0, .backoff_factor = 0.25, .growth_interval = 3});
  const std::vector<bool> found = {false, false, true, false, false, false, false, true, true};
  const std::vector<double> want = {8, 8, 2, 2, 2, 8, 8, 2, 0.5};
  for (size_t i = 0; i < found.size(); ++i) {
    scaler.Update(found[i]);
    EXPECT_EQ(scaler.scale(), want[i]) << i;
  }
}

TEST(LossScalerTest, StaysInTheRangeOfF32) {
  LossScaler scaler({.init_scale = 0x1p127, .growth_interval = 1});
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
  scaler.Restore({.scale = 0x1p-126});
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 0x1p-126);
}

TEST(LossScalerTest, ARestoredStateContinues) {
  LossScaler scaler({.init_scale = 8.0, .growth_interval = 3});
  scaler.Update(false);
  scaler.Update(false);
  LossScaler other({.init_scale = 1.0, .growth_interval = 3});
  other.Restore(scaler.state());
  other.Update(false);
  EXPECT_EQ(other.scale(), 16.0);
}

TEST(LossScalerTest, RefusesNumbersOutsideTheirRange) {
  const auto error = [](LossScalerOptions o) { return ErrorOf([&] { LossScaler scaler(o); }); };
  EXPECT_TRUE(Contains(error({.init_scale = 0.0}), "init_scale is a positive number"));
  EXPECT_TRUE(Contains(error({.init_scale = 1e60}), "got 1e+60"));
  EXPECT_TRUE(Contains(error({.growth_factor = 1.0}), "growth_factor is above 1, got 1"));
  EXPECT_TRUE(Contains(error({.backoff_factor = 1.0}), "backoff_factor is between 0 and 1"));
  EXPECT_TRUE(Contains(error({.growth_interval = 0}), "growth_interval is at least 1"));
  LossScaler scaler;
  EXPECT_TRUE(Contains(ErrorOf([&] { scaler.Restore({.scale = -1.0}); }), "a restored scale"));
  EXPECT_TRUE(Contains(ErrorOf([&] { scaler.Restore({1.0, -1}); }), "good steps"));
  EXPECT_EQ(scaler.scale(), 65536.0);
}

TEST(LossScalerTest, OnePartThatIsNotFiniteIsAnOverflow) {
  EXPECT_FALSE(LossScaler::FoundInf(std::vector<double>{0.0, 1e300}));
  EXPECT_TRUE(LossScaler::FoundInf(std::vector<double>{0.0, kInfinity}));
  EXPECT_TRUE(LossScaler::FoundInf(std::vector<double>{std::nan(""), 1.0}));
}

// Only rank 1 holds the element that overflowed; the last ranks hold no element at all.
TEST(LossScalerTest, AllRanksSeeAnOverflowOfOne) {
  for (NormType type : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
    RunRanks(4, [&](World& world) {
      LinearLayer model(1, 2, Initializer::Normal(1.0), DType::kF64);
      FullyShard(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      LossScaler scaler;
      for (int step = 0; step < 2; ++step) {
        Tape tape;
        {
          const Recording on(tape);
          const Variable x = NormalTensor(world.device(), DType::kF64, {1, 1}, 3);
          tape.Backward(Sum(model(x)));
        }
        const Tensor piece = UnitOf(model)->HeldGradient(0);
        EXPECT_EQ(piece.numel(), world.rank() < 2 ? 1 : 0);
        if (step == 1 && world.rank() == 1) piece.data<double>()[0] = kInfinity;
        std::vector<double> slots(static_cast<size_t>(NormSlots(type, world.size())));
        LocalNormPart(model, type, world.rank(), slots);
        world.group().AllReduce(slots.data(), static_cast<int64_t>(slots.size()), DType::kF64);
        scaler.Update(LossScaler::FoundInf(slots));
        EXPECT_EQ(scaler.scale(), step == 0 ? 65536.0 : 32768.0);
        model.weight().ClearGrad();
      }
    });
  }
}

}  // namespace
}  // namespace sherd::testing
