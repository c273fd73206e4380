// Who divides what the units sum.

#include "sherd/shard/scale.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/sgd.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"
#include "tests/shard/one_weight.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int64_t kRows = 2;  // of each rank
constexpr int64_t kIn = 3;

double Input(int64_t row, int64_t column) {
  return 0.25 * static_cast<double>(row * row + 1) - 0.5 * static_cast<double>(column + row);
}

// y = x W, W = 1/2 everywhere; what ranks and steps add up to is computed by plain loops.
struct Linear {
  Linear(World& world, FullyShardOptions options, bool checkpoint = false)
      : world(world), model(kIn, 1, Initializer::Constant(0.5), DType::kF64) {
    if (checkpoint) Checkpoint(model);
    FullyShard(model, world.mesh(), options);
    Initialize(model, world.device(), 1);
  }
  // The mean over this rank's rows of y^2 / 2.
  Variable Mean() {
    std::vector<double> x;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kIn; ++c) x.push_back(Input(world.rank() * kRows + r, c));
    }
    const Variable y = model(Variable(Tensor::FromHost<double>(world.device(), x, {kRows, kIn})));
    return Scale(Energy(y), 0.5 / static_cast<double>(kRows));
  }
  void Run(int backwards = 1) {
    Tape tape;
    const Recording on(tape);
    for (int k = 0; k < backwards; ++k) {
      tape.Backward(Mean());
      tape.Reset();
    }
  }
  World& world;
  LinearLayer model;
};

// Of the mean over the rows of all ranks, times `factor`.
Whole MeanGradient(int ranks, double factor = 1.0) {
  std::vector<double> gradient(kIn, 0.0);
  const int64_t rows = ranks * kRows;
  for (int64_t r = 0; r < rows; ++r) {
    double y = 0.0;
    for (int64_t c = 0; c < kIn; ++c) y += 0.5 * Input(r, c);
    for (int64_t c = 0; c < kIn; ++c) {
      gradient[static_cast<size_t>(c)] += factor * y * Input(r, c) / static_cast<double>(rows);
    }
  }
  return {{"weight", gradient}};
}

constexpr int kWorlds[] = {1, 2, 3};

TEST(Scale, UnitsDivideAMeanOfEachRankByTheNumberOfRanks) {
  for (const ScaleBy by : {ScaleBy::kAuto, ScaleBy::kUnitDivisor}) {
    for (int ranks : kWorlds) {
      SCOPED_TRACE(ranks);
      RunRanks(ranks, [&](World& world) {
        Linear rank(world, {.scale = by});
        rank.Run();
        ExpectClose(GradientsOf(rank.model, &world.group()), MeanGradient(ranks));
      });
    }
  }
}

TEST(Scale, OfACallerNobodyDivides) {
  for (int ranks : kWorlds) {
    RunRanks(ranks, [&](World& world) {
      Linear rank(world, {.scale = ScaleBy::kCaller});
      rank.Run();
      ExpectClose(GradientsOf(rank.model, &world.group()), MeanGradient(ranks, ranks));
      // Windows may come then too; they hand out sums.
      EXPECT_FALSE(WindowScale(rank.model, CallSite::Here()).divides());
    });
  }
}

TEST(Scale, OnceWithACheckpointInsideOrAroundAndInEachOfTwoBackwards) {
  for (int ranks : kWorlds) {
    RunRanks(ranks, [&](World& world) {
      Linear inside(world, {}, /*checkpoint=*/true);
      inside.Run(2);
      ExpectClose(GradientsOf(inside.model, &world.group()), MeanGradient(ranks, 2.0));
      // The tape has no call of a unit then, but a region that will make one.
      Linear around(world, {});
      {
        Tape tape;
        const Recording on(tape);
        tape.Backward(
            Checkpoint({.wrong_order = WrongOrder::kAllow}, [&around] { return around.Mean(); }));
      }
      ExpectClose(GradientsOf(around.model, &world.group()), MeanGradient(ranks));
    });
  }
}

TEST(Scale, EachSeedOnceWhichStaysTheCallers) {
  RunRanks(2, [](World& world) {
    Linear rank(world, {});
    Tape tape;
    const Recording on(tape);
    const Variable a = rank.Mean();
    const Variable b = rank.Mean();
    const Tensor one =
        Tensor::FromHost<double>(world.device(), std::vector<double>{1.0}, a.shape());
    const Tensor two =
        Tensor::FromHost<double>(world.device(), std::vector<double>{2.0}, a.shape());
    tape.Backward({a, b, a}, {one, two, one});
    EXPECT_EQ(one.ToHost<double>()[0], 1.0);
    EXPECT_EQ(two.ToHost<double>()[0], 2.0);
    ExpectClose(GradientsOf(rank.model, &world.group()), MeanGradient(2, 4.0));
  });
}

// A hook that feeds gradients into another tape gives it what is scaled already.
TEST(Scale, ABackwardInAHookOfOneThatWasScaledIsNotScaledAgain) {
  RunRanks(2, [](World& world) {
    Linear rank(world, {});
    Tape outer, inner;
    Variable mean;
    {
      const Recording on(inner);
      mean = rank.Mean();
    }
    const Recording on(outer);
    const Variable cut = Variable::Leaf(mean.value());
    cut.OnGradient([&](const Tensor& gradient) {
      inner.Backward(std::span(&mean, 1), std::span(&gradient, 1));
      return gradient;
    });
    outer.Backward(Add(cut, rank.Mean()));
    ExpectClose(GradientsOf(rank.model, &world.group()), MeanGradient(2, 2.0));
  });
}

TEST(Scale, AWindowOwnsItWhileTheAccumulationLives) {
  for (int ranks : kWorlds) {
    RunRanks(ranks, [&](World& world) {
      Linear rank(world, {});
      {
        Accumulation accumulation(rank.model);
        ExpectErrorHas(ErrorText([&] { rank.Run(); }),
                       {"the Accumulation of", "scale_test.cc", "window->Backward"});
        KeepGradients optimizer(rank.model, &world.group());
        Tape tape;
        RunWindow(accumulation, optimizer, tape, {0},
                  [&](uint64_t) { return Scale(rank.Mean(), static_cast<double>(kRows)); }, {});
        // RunWindow counts kItems for each rank's rows.
        ExpectClose(optimizer.gradients,
                    MeanGradient(ranks, static_cast<double>(kRows) / static_cast<double>(kItems)));
      }
      rank.Run();
      ExpectClose(GradientsOf(rank.model, &world.group()), MeanGradient(ranks));
    });
  }
}

TEST(Scale, TwoOwnersAreAnErrorThatNamesBoth) {
  RunRanks(2, [](World& world) {
    Linear rank(world, {});
    {
      const Accumulation first(rank.model, {}, {"first.cc", 11});
      ExpectErrorHas(ErrorText([&] {
                       Accumulation(rank.model, {}, {"second.cc", 22});
                     }),
                     {"first.cc:11", "second.cc:22"});
      // The one that failed has not taken it away.
      ExpectErrorHas(ErrorText([&] { rank.Run(); }), {"first.cc:11"});
      // Another model has an owner of its own.
      Linear other(world, {});
      const Accumulation second(other.model);
    }
    Linear units(world, {.scale = ScaleBy::kUnitDivisor});
    ExpectErrorHas(ErrorText([&] {
                     Accumulation(units.model, {}, {"second.cc", 22});
                   }),
                   {"number of ranks", "kUnitDivisor", "second.cc:22"});
    Linear windows(world, {.scale = ScaleBy::kWindow});
    ExpectErrorHas(ErrorText([&] { windows.Run(); }), {"kWindow", "window->Backward"});
  });
}

TEST(Scale, GradientsThatAreHeldKeepAnAccumulationAway) {
  RunRanks(2, [](World& world) {
    for (const GradientSync sync : {GradientSync::kFull, GradientSync::kNone}) {
      Linear rank(world, {});
      SetGradientSync(rank.model, sync);
      rank.Run();
      ExpectErrorHas(ErrorText([&] { Accumulation accumulation(rank.model); }),
                     {"'weight'", "holds a gradient", "scale_test.cc"});
      FinishGradients(rank.model);
      for (const Parameter& parameter : rank.model.parameters()) parameter.ClearGrad();
      EXPECT_EQ(ErrorText([&] { Accumulation accumulation(rank.model); }), "no error");
    }
  });
}

TEST(Scale, AUnitInsideThatSaysOtherThanItsRootIsRefused) {
  RunRanks(1, [](World& world) {
    ShardModel model;
    FullyShard(model.block(1), world.mesh(), {.scale = ScaleBy::kCaller});
    FullyShard(model, world.mesh());
    Initialize(model, world.device(), 1);
    Tape tape;
    const Recording on(tape);
    const std::vector<std::string> both = {"'block1'", "kCaller", "'the root module'", "kAuto"};
    const Variable loss = Energy(model(InputOf(world.device(), 0), {0, 1}));
    ExpectErrorHas(ErrorText([&] { tape.Backward(loss); }), both);
    ExpectErrorHas(ErrorText([&] { Accumulation accumulation(model); }), both);
  });
}

TEST(Scale, CallsOfOneBackwardThatDisagreeAreRefusedBeforeAnythingRuns) {
  RunRanks(2, [](World& world) {
    Linear units(world, {});
    Linear caller(world, {.scale = ScaleBy::kCaller});
    Tape tape;
    const Recording on(tape);
    const Variable loss = Add(units.Mean(), caller.Mean());
    ExpectErrorHas(ErrorText([&] { tape.Backward(loss); }), {"differently", "0.5", "by 1"});
    EXPECT_TRUE(GradientsOf(units.model, nullptr).empty());
    EXPECT_TRUE(GradientsOf(caller.model, nullptr).empty());
  });
}

TEST(Scale, TheOwnerIsLoggedOnceByRankZero) {
  std::mutex mutex;
  std::vector<std::string> lines;
  RunRanks(2,
           [](World& world) {
             Linear rank(world, {});
             rank.Run(2);
             for (const Parameter& parameter : rank.model.parameters()) parameter.ClearGrad();
             for (int k = 0; k < 2; ++k) Accumulation accumulation(rank.model);
           },
           {.log = [&](const LogRecord& record) {
             const std::lock_guard<std::mutex> lock(mutex);
             if (record.text.starts_with("scale: ")) {
               EXPECT_EQ(record.level, LogLevel::kInfo);
               EXPECT_EQ(record.rank, 0);
               lines.emplace_back(record.text);
             }
           }});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "scale: gradients are divided by the number of ranks (2), as no Accumulation exists "
            "(kAuto)");
  EXPECT_TRUE(Contains(lines[1], "the windows of the Accumulation of"));
}

}  // namespace
}  // namespace sherd::testing
