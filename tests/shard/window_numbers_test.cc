// What windows give, against numbers worked out by hand: gradients, losses, steps and counters.

#include <gtest/gtest.h>

#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/autograd/optim/adamw.h"
#include "tests/shard/one_weight.h"

namespace sherd::testing {
namespace {

TEST(WindowNumbersTest, LongSampleCountsByItsTokens) {
  // 10 tokens of gradient 1 and 100 of gradient 2: 210 / 110, not the mean of the means, 1.5.
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [&](World& world) {
      OneWeight rank(world);
      Accumulation accumulation(rank.model, {.micro_batches = 2});
      KeepStep optimizer(rank.model, &world.group());
      std::vector<Tokens> mine = {Tokens::Of(10, 1.0), Tokens::Of(100, 2.0)};
      if (ranks == 2) mine = {mine[static_cast<size_t>(world.rank())]};
      auto window = accumulation.Next(LoaderFor(mine), CountTokens);
      rank.RunAll(*window);
      const StepResult result = window->Finish(optimizer, 1e-3);
      EXPECT_EQ(result.items, 110);
      EXPECT_EQ(result.micro_batches, 2);
      EXPECT_NEAR(optimizer.gradients.at("weight")[0], 210.0 / 110.0, 1e-12);
      EXPECT_NEAR(result.grad_norm, 210.0 / 110.0, 1e-12);
    });
  }
}

TEST(WindowNumbersTest, EffectiveBatchIsLoggedOnceByRankZero) {
  std::mutex mutex;
  std::vector<std::string> lines;
  RunRanks(2,
           [](World& world) {
             OneWeight rank(world);
             Accumulation accumulation(rank.model, {.micro_batches = 2});
             Sgd optimizer(rank.model.parameters());
             // Rank 0: 10 and 100 tokens, rank 1: 5; then 1 and 1. Each is 3 samples.
             std::vector<Tokens> mine = {Tokens::Of(world.rank() == 0 ? 10 : 5, 1.0)};
             if (world.rank() == 0) mine.push_back(Tokens::Of(100, 2.0));
             const auto count = [](const Tokens& batch) {
               return BatchCount{.items = batch.count(), .samples = 3};
             };
             for (int step = 0; step < 2; ++step) {
               auto window = accumulation.Next(LoaderFor(mine), count);
               rank.RunAll(*window);
               window->Finish(optimizer, 1e-3);
               mine = {Tokens::Of(1, 1.0)};
             }
           },
           {.log = [&](const LogRecord& record) {
             const std::lock_guard<std::mutex> lock(mutex);
             if (record.text.starts_with("effective batch")) lines.emplace_back(record.text);
           }});
  EXPECT_EQ(lines,
            std::vector<std::string>{
                "effective batch: step 1 has 9 samples in 3 micro-batches on 2 ranks; 'loss' "
                "is divided by 115"});
}

TEST(WindowNumbersTest, ShortLastWindowIsDividedByWhatItHolds) {
  // Five micro-batches of unit gradient, two to a window: three steps of -0.1.
  for (int ranks : {1, 2, 3}) {
    RunRanks(ranks, [&](World& world) {
      OneWeight rank(world);
      Accumulation accumulation(rank.model, {.micro_batches = 2});
      Sgd optimizer(rank.model.parameters());
      auto loader = LoaderFor(std::vector<Tokens>(5, Tokens::Of(1, 1.0)));
      while (auto window = accumulation.Next(loader, CountTokens)) {
        rank.RunAll(*window);
        window->Finish(optimizer, 0.1);
      }
      EXPECT_EQ(accumulation.steps(), 3);
      EXPECT_NEAR(rank.Value(), -0.3, 1e-12);
    });
  }
}

TEST(WindowNumbersTest, LearningRateFollowsOptimizerStepsForAnyRanksAndMicroBatches) {
  // Linear from 1e-3 over 100 steps: 9e-4 after 10, skipped ones not counted.
  const Schedule schedule = LinearSchedule({.highest = 1e-3, .steps = 100});
  for (int ranks : {1, 2, 3}) {
    for (int64_t micro_batches : {1, 3}) {
      RunRanks(ranks, [&](World& world) {
        OneWeight rank(world);
        Accumulation accumulation(rank.model, {.micro_batches = micro_batches});
        KeepStep optimizer(rank.model, &world.group());
        for (int made = 0; made < 11; ++made) {
          for (const int64_t items : {int64_t{0}, int64_t{1}}) {  // the first of both is skipped
            const std::vector<Tokens> batches(static_cast<size_t>(micro_batches), {{1.0}, items});
            auto window = accumulation.Next(LoaderFor(batches), CountTokens);
            rank.RunAll(*window);
            EXPECT_EQ(window->Finish(optimizer, schedule).skipped, items == 0);
          }
        }
        EXPECT_NEAR(optimizer.learning_rate, 9.0e-4, 1e-18);
      });
    }
  }
}

TEST(WindowNumbersTest, CallerThatDividesIsGivenSums) {
  for (bool stream : {false, true}) {
    RunRanks(2, [&](World& world) {
      LinearLayer model(1, 1, Initializer::Constant(0.0), DType::kF64);
      FullyShard(model, world.mesh(), {.scale = ScaleBy::kCaller});
      OneWeight rank(world, /*sharded=*/false);
      Initialize(model, world.device(), 1);
      Accumulation accumulation(model);
      KeepStep optimizer(model, &world.group());
      auto loader = LoaderFor(std::vector<Tokens>{Tokens::Of(10, 2.0)});
      const auto run = [&](auto window) {
        for (const Tokens& batch : *window) {
          const Recording on(rank.tape);
          const Variable x(Tensor::FromHost<double>(world.device(), batch.gradients, {10, 1}));
          window->Backward({Sum(model(x)), batch.count()});
        }
        return window->Finish(optimizer, 1e-3);
      };
      const StepResult result = stream ? run(accumulation.Stream(loader, CountTokens))
                                       : run(accumulation.Next(loader, CountTokens));
      EXPECT_EQ(result.items, 20);
      EXPECT_EQ(optimizer.gradients.at("weight")[0], 40.0);
    });
  }
}

TEST(WindowNumbersTest, EpochsAreCutApart) {
  // 10 micro-batches, four to a window, two epochs: 3 steps each.
  RunRanks(1, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model, {.micro_batches = 4});
    Sgd optimizer(rank.model.parameters());
    std::vector<int64_t> held;
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto loader = LoaderFor(std::vector<Tokens>(10, Tokens::Of(1, 1.0)));
      while (auto window = accumulation.Next(loader, CountTokens)) {
        rank.RunAll(*window);
        held.push_back(window->Finish(optimizer, 1e-3).micro_batches);
      }
    }
    EXPECT_EQ(accumulation.steps(), 6);
    EXPECT_EQ(held, (std::vector<int64_t>{4, 4, 2, 4, 4, 2}));
  });
}

TEST(WindowNumbersTest, RankWithoutLabelsTakesPartAndAddsNothing) {
  for (bool stream : {false, true}) {
    RunRanks(2, [&](World& world) {
      OneWeight rank(world);
      Accumulation accumulation(rank.model);
      KeepStep optimizer(rank.model, &world.group());
      // What is not labelled is NaN, and has no part in it.
      Tokens mine = Tokens::Of(4, 3.0);
      if (world.rank() == 1) mine = {{std::nan("")}, 0};
      auto loader = LoaderFor(std::vector<Tokens>{mine});
      const auto run = [&](auto window) {
        rank.RunAll(*window);
        return window->Finish(optimizer, 1e-3);
      };
      const StepResult result = stream ? run(accumulation.Stream(loader, CountTokens))
                                       : run(accumulation.Next(loader, CountTokens));
      EXPECT_EQ(result.items, 4);
      EXPECT_EQ(result.micro_batches, 1);
      EXPECT_NEAR(optimizer.gradients.at("weight")[0], 3.0, 1e-12);
    });
  }
}

TEST(WindowNumbersTest, WindowWithoutItemsIsSkippedOrCountedOnAllRanks) {
  for (const EmptyWindow empty : {EmptyWindow::kSkip, EmptyWindow::kCount}) {
    for (bool stream : {false, true}) {
      RunRanks(2, [&](World& world) {
        OneWeight rank(world);
        Accumulation accumulation(rank.model, {.empty = empty});
        KeepStep optimizer(rank.model, &world.group());
        auto loader = LoaderFor(std::vector<Tokens>{{{0.0, 0.0}, 0}, Tokens::Of(2, 1.0)});
        const auto run = [&](auto window) {
          EXPECT_TRUE(window.has_value());
          rank.RunAll(*window);
          return window->Finish(optimizer, 1e-3);
        };
        const auto next = [&] {
          return stream ? run(accumulation.Stream(loader, CountTokens))
                        : run(accumulation.Next(loader, CountTokens));
        };
        const bool skips = empty == EmptyWindow::kSkip;
        const StepResult nothing = next();
        EXPECT_EQ(nothing.loss, 0.0);
        EXPECT_EQ(nothing.items, 0);
        EXPECT_EQ(nothing.grad_norm, 0.0);
        EXPECT_EQ(nothing.skipped, skips);
        EXPECT_EQ(nothing.why, skips ? StepSkip::kEmpty : StepSkip::kNone);
        EXPECT_EQ(optimizer.steps, skips ? 0 : 1);
        if (!skips) {
          EXPECT_EQ(optimizer.gradients.at("weight"), std::vector<double>{0.0});
        }
        EXPECT_EQ(accumulation.steps(), skips ? 0 : 1);
        const StepResult something = next();
        EXPECT_EQ(something.step, skips ? 1 : 2);
        EXPECT_EQ(something.items, 4);
        EXPECT_NEAR(optimizer.gradients.at("weight")[0], 1.0, 1e-12);
      });
    }
  }
}

TEST(WindowNumbersTest, CountsAbove2To24AreExact) {
  // In f32 the sum would be 2^24 again. A window of so many items that the loss does not need.
  const int64_t large = (int64_t{1} << 24) + 1;
  RunRanks(2, [&](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model);
    KeepStep optimizer(rank.model, &world.group());
    const Tokens mine = {{static_cast<double>(large)}, world.rank() == 0 ? large : 2};
    auto window = accumulation.Next(LoaderFor(std::vector<Tokens>{mine}), CountTokens);
    EXPECT_EQ(window->items(), large + 2);
    rank.RunAll(*window);
    EXPECT_EQ(window->Finish(optimizer, 1e-3).items, large + 2);
    const double want = 2.0 * static_cast<double>(large) / static_cast<double>(large + 2);
    EXPECT_NEAR(optimizer.gradients.at("weight")[0], want, 1e-12);
  });
}

TEST(WindowNumbersTest, OverflowOnOneRankSkipsTheStepOfAllAndNoCounterMoves) {
  RunRanks(2, [](World& world) {
    OneWeight rank(world);
    LossScaler scaler({.init_scale = 1024.0});
    Accumulation accumulation(rank.model, {.scaler = &scaler});
    AdamW optimizer(rank.model.parameters(), {.weight_decay = 0.0});
    struct Steps : OptimizerStateVisitor {
      void OnTensor(const Parameter&, std::string_view, const Tensor&) override {}
      void OnCount(const Parameter&, std::string_view, int64_t& count) override { steps = count; }
      int64_t steps = -1;
    } adam;
    const double infinity = std::numeric_limits<double>::infinity();
    auto loader = LoaderFor(
        std::vector<Tokens>{Tokens::Of(1, world.rank() == 0 ? 1.0 : infinity), Tokens::Of(1, 1.0)});
    auto window = accumulation.Next(loader, CountTokens);
    rank.RunAll(*window);
    const StepResult overflow = window->Finish(optimizer, 0.1);
    EXPECT_TRUE(overflow.skipped);
    EXPECT_EQ(overflow.why, StepSkip::kNonFinite);
    EXPECT_EQ(scaler.scale(), 512.0);
    optimizer.VisitState(adam);
    EXPECT_EQ(adam.steps, 0);
    EXPECT_EQ(accumulation.steps(), 0);
    EXPECT_EQ(rank.Value(), 0.0);
    window = accumulation.Next(loader, CountTokens);
    EXPECT_EQ(window->step(), 1);
    rank.RunAll(*window);
    EXPECT_EQ(window->Finish(optimizer, 0.1).step, 1);
    optimizer.VisitState(adam);
    EXPECT_EQ(adam.steps, 1);
    // Adam's first step is the learning rate, whatever the gradient.
    EXPECT_NEAR(rank.Value(), -0.1, 1e-8);
  });
}

}  // namespace
}  // namespace sherd::testing
