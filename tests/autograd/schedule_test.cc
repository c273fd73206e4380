// Learning rates, against numbers worked out by hand.

#include "sherd/autograd/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void ExpectError(const std::function<void()>& body, const std::string& part) {
  const std::string text = ErrorOf(body);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ScheduleTest, NumberAndCallableAreSchedules) {
  const Schedule constant = 2e-3;
  EXPECT_EQ(constant.At(0), 2e-3);
  EXPECT_EQ(constant.At(1000), 2e-3);
  const Schedule mine = [](int64_t made) { return 1.0 / static_cast<double>(made + 1); };
  EXPECT_EQ(mine.At(3), 0.25);
}

TEST(ScheduleTest, LinearDecayCountsStepsMade) {
  const Schedule linear = LinearSchedule({.highest = 1e-3, .steps = 100});
  EXPECT_EQ(linear.At(0), 1e-3);
  EXPECT_NEAR(linear.At(10), 9.0e-4, 1e-18);
  EXPECT_NEAR(linear.At(99), 1e-5, 1e-18);
  EXPECT_EQ(linear.At(100), 0.0);
  EXPECT_EQ(linear.At(5000), 0.0);
  const Schedule floored =
      LinearSchedule({.highest = 1.0, .lowest = 0.5, .steps = 14, .warmup = 4});
  const double want[] = {0.25, 0.5, 0.75, 1.0, 1.0, 0.95, 0.9};
  for (int made = 0; made < 7; ++made) EXPECT_NEAR(floored.At(made), want[made], 1e-15) << made;
  EXPECT_NEAR(floored.At(14), 0.5, 1e-15);
}

TEST(ScheduleTest, CosineGoesThroughTheMiddleAtHalfOfTheSteps) {
  const Schedule cosine =
      CosineSchedule({.highest = 1.0, .lowest = 0.2, .steps = 102, .warmup = 2});
  EXPECT_EQ(cosine.At(0), 0.5);
  EXPECT_EQ(cosine.At(1), 1.0);
  EXPECT_EQ(cosine.At(2), 1.0);
  EXPECT_NEAR(cosine.At(27), 0.2 + 0.4 * (1.0 + std::sqrt(0.5)), 1e-15);  // an eighth of a turn
  EXPECT_NEAR(cosine.At(52), 0.6, 1e-15);
  EXPECT_NEAR(cosine.At(102), 0.2, 1e-15);
}

TEST(ScheduleTest, WarmupStableDecayStaysUntilTheDecay) {
  const Schedule wsd =
      WarmupStableDecaySchedule({.highest = 1.0, .steps = 20, .warmup = 4, .decay = 10});
  EXPECT_EQ(wsd.At(1), 0.5);
  for (int made = 4; made <= 10; ++made) EXPECT_EQ(wsd.At(made), 1.0) << made;
  EXPECT_NEAR(wsd.At(11), 0.9, 1e-15);
  EXPECT_NEAR(wsd.At(19), 0.1, 1e-15);
  EXPECT_EQ(wsd.At(20), 0.0);
}

TEST(ScheduleTest, InverseSquareRootHalvesWithFourTimesTheSteps) {
  const Schedule schedule = InverseSqrtSchedule({.highest = 1.0, .warmup = 100});
  EXPECT_NEAR(schedule.At(49), 0.5, 1e-15);
  EXPECT_EQ(schedule.At(100), 1.0);
  EXPECT_EQ(schedule.At(400), 0.5);
  EXPECT_EQ(schedule.At(1600), 0.25);
}

TEST(ScheduleTest, ConstantMayRise) {
  const Schedule schedule = ConstantSchedule({.rate = 1.0, .warmup = 4});
  EXPECT_EQ(schedule.At(0), 0.25);
  EXPECT_EQ(schedule.At(3), 1.0);
  EXPECT_EQ(schedule.At(4), 1.0);
}

TEST(ScheduleTest, TotalsIncludeShortWindows) {
  EXPECT_EQ(OptimizerSteps({.micro_batches = 10, .per_window = 4, .epochs = 2}), 6);
  EXPECT_EQ(OptimizerSteps({.micro_batches = 8, .per_window = 4, .epochs = 3}), 6);
  EXPECT_EQ(OptimizerSteps({.micro_batches = 0, .per_window = 4}), 0);
}

TEST(ScheduleTest, WhatDoesNotFitIsNamed) {
  ExpectError([] { Schedule schedule = -1.0; }, "learning rate is a finite rate of at least 0");
  ExpectError([] { Schedule schedule = std::numeric_limits<double>::infinity(); }, "got inf");
  ExpectError([] { LinearSchedule({.highest = 1e-3}); }, "steps is at least 1, got 0");
  ExpectError([] { LinearSchedule({.highest = std::nan(""), .steps = 1}); }, "highest is a finite");
  ExpectError([] { CosineSchedule({.highest = 1e-4, .lowest = 1e-3, .steps = 5}); },
              "lowest 0.001 is above highest 0.0001");
  ExpectError([] { CosineSchedule({.steps = 5, .warmup = 6}); }, "warmup is 6, more than the 5");
  ExpectError([] { CosineSchedule({.steps = 5, .warmup = -1}); }, "warmup is at least 0, got -1");
  ExpectError([] { WarmupStableDecaySchedule({.steps = 5, .warmup = 3, .decay = 3}); },
              "warmup + decay is 6, more than the 5 steps");
  ExpectError([] { InverseSqrtSchedule({.warmup = 0}); }, "warmup is at least 1, got 0");
  ExpectError([] { OptimizerSteps({.micro_batches = 1, .per_window = 0}); }, "per_window");
}

}  // namespace
}  // namespace sherd
