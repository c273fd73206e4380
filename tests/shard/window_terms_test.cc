// Several losses in one step, each with its own denominator, and every way to divide.

#include <gtest/gtest.h>

#include "tests/shard/one_weight.h"

namespace sherd::testing {
namespace {

// One window of two micro-batches on each of the ranks; returns what the optimizer was given.
struct Given {
  double gradient = 0.0;
  StepResult result;
};

template <typename Backward, typename... Counts>
Given RunWindow(World& world, AccumulationOptions options, const std::vector<Tokens>& mine,
                const Backward& backward, const Counts&... counts) {
  OneWeight rank(world);
  options.micro_batches = 2;
  Accumulation accumulation(rank.model, options);
  KeepStep optimizer(rank.model, &world.group());
  auto window = accumulation.Next(LoaderFor(mine), counts...);
  for (const Tokens& batch : *window) {
    const Recording on(rank.tape);
    backward(*window, rank, batch);
  }
  Given given;
  given.result = window->Finish(optimizer, 1e-3);
  given.gradient = optimizer.gradients.at("weight")[0];
  return given;
}

// Rank 0 has 10 tokens of gradient 1 and one of gradient 5, rank 1 one micro-batch of 100 of
// gradient 2: sums 10, 5 and 200.
std::vector<Tokens> MineOf(const World& world) {
  if (world.rank() == 1) return {Tokens::Of(100, 2.0)};
  std::vector<Tokens> mine = {Tokens::Of(10, 1.0), Tokens::Of(1, 5.0)};
  if (world.size() == 1) mine = {Tokens::Of(10, 1.0), {Tokens::Of(100, 2.0)}};
  return mine;
}

const auto kBackwardOne = [](auto& window, OneWeight& rank, const Tokens& batch) {
  window.Backward(rank.Loss(batch));
};

TEST(WindowTermsTest, EveryDivisorIsTheOneItSays) {
  RunRanks(2, [](World& world) {
    const std::vector<Tokens> mine = MineOf(world);
    const auto gradient = [&](LossTerm term, auto... counts) {
      return RunWindow(world, {.losses = {term}}, mine, kBackwardOne, counts...).gradient;
    };
    EXPECT_NEAR(gradient({}, CountTokens), 215.0 / 111.0, 1e-12);
    // Two samples in each micro-batch.
    EXPECT_NEAR(gradient({.divide_by = Divisor::kSamples}, [](const Tokens&) { return 2; }),
                215.0 / 6.0, 1e-12);
    EXPECT_NEAR(gradient({.divide_by = Divisor::kMicroBatches}), 215.0 / 3.0, 1e-12);
    EXPECT_NEAR(gradient({.divide_by = Divisor::kGiven, .divisor = 8.0}), 215.0 / 8.0, 1e-12);
    const auto weight = [](const Tokens& batch) { return 0.5 * batch.gradients[0]; };
    EXPECT_NEAR(gradient({.divide_by = Divisor::kWeights}, weight), 215.0 / 4.0, 1e-12);
    // The weight of a term is no divisor of what is logged for it.
    const Given given =
        RunWindow(world, {.losses = {{.weight = 0.5}}}, mine, kBackwardOne, CountTokens);
    EXPECT_NEAR(given.gradient, 0.5 * 215.0 / 111.0, 1e-12);
  });
}

TEST(WindowTermsTest, TwoLossesHaveTheirOwnDenominators) {
  // The second loss is 3 times the first, summed over twice as many items of its own, and weighs
  // 0.1; the third stands for itself in each micro-batch.
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [&](World& world) {
      const AccumulationOptions options = {
          .losses = {{.name = "tokens"},
                     {.name = "z", .weight = 0.1},
                     {.name = "balance", .divide_by = Divisor::kMicroBatches, .weight = 0.01}}};
      const auto backward = [](auto& window, OneWeight& rank, const Tokens& batch) {
        LossSum z = rank.Loss(batch, 3.0);
        z.items = 2 * batch.count();
        window.Backward({rank.Loss(batch), z, rank.Loss(batch, 7.0)});
      };
      const Given given = RunWindow(world, options, MineOf(world), backward, CountTokens,
                                    [](const Tokens& batch) { return 2 * batch.count(); });
      const double sum = ranks == 1 ? 210.0 : 215.0;
      const double items = ranks == 1 ? 110.0 : 111.0;
      const double held = ranks == 1 ? 2.0 : 3.0;
      const double want = sum / items + 0.1 * 3.0 * sum / (2.0 * items) + 0.01 * 7.0 * sum / held;
      EXPECT_NEAR(given.gradient, want, 1e-12);
      ASSERT_EQ(given.result.losses.size(), 3u);
    });
  }
}

TEST(WindowTermsTest, LoggedLossIsTheOneOptimised) {
  // With w = 0 the values are those of constants added to them.
  RunRanks(2, [](World& world) {
    const AccumulationOptions options = {.losses = {{}, {.name = "aux", .weight = 0.5}}};
    const auto backward = [](auto& window, OneWeight& rank, const Tokens& batch) {
      LossSum loss = rank.Loss(batch);
      const Variable four(Tensor::FromHost<double>(rank.world.device(), {{4.0}}, {1}));
      loss.value = Add(loss.value, Scale(four, static_cast<double>(batch.count())));
      LossSum aux = rank.Loss(batch);
      aux.value = Add(aux.value, four);
      aux.items = 1;
      window.Backward({loss, aux});
    };
    const Given given = RunWindow(world, options, MineOf(world), backward, CountTokens,
                                  [](const Tokens&) { return 1; });
    EXPECT_NEAR(given.result.losses[0], 4.0, 1e-12);
    EXPECT_NEAR(given.result.losses[1], 4.0, 1e-12);
    EXPECT_NEAR(given.result.loss, 6.0, 1e-12);
  });
}

TEST(WindowTermsTest, LossThatIsNotInAMicroBatchIsLeftOut) {
  RunRanks(1, [](World& world) {
    const AccumulationOptions options = {.losses = {{}, {.name = "aux"}}};
    const auto backward = [](auto& window, OneWeight& rank, const Tokens& batch) {
      window.Backward({rank.Loss(batch), batch.count() == 10 ? rank.Loss(batch) : LossSum{}});
    };
    const auto aux = [](const Tokens& batch) { return batch.count() == 10 ? 10 : 0; };
    const Given given = RunWindow(world, options, MineOf(world), backward, CountTokens, aux);
    EXPECT_NEAR(given.gradient, 210.0 / 110.0 + 10.0 / 10.0, 1e-12);
  });
}

TEST(WindowTermsTest, WeightZeroIsNotComputedAndItsNaNReachesNobody) {
  for (bool nan_on_both : {false, true}) {
    RunRanks(2, [&](World& world) {
      std::vector<Tokens> mine = {{{std::nan("")}}, {{6.0}}};
      if (!nan_on_both && world.rank() == 1) mine = {{{6.0}}, {{6.0}}};
      const auto weight = [](const Tokens& batch) {
        return std::isnan(batch.gradients[0]) ? 0.0 : 1.5;
      };
      const Given given = RunWindow(world, {.losses = {{.divide_by = Divisor::kWeights}}}, mine,
                                    kBackwardOne, weight);
      EXPECT_NEAR(given.gradient, 4.0, 1e-12);
      EXPECT_EQ(given.result.micro_batches, nan_on_both ? 2 : 3);
    });
  }
}

TEST(WindowTermsTest, OptionsAndCountsThatDoNotFitAreRefused) {
  RunRanks(1, [](World& world) {
    OneWeight rank(world);
    const auto refused = [&](AccumulationOptions options) {
      return ErrorText([&] { Accumulation accumulation(rank.model, std::move(options)); });
    };
    ExpectErrorHas(refused({.losses = {}}), {"there are no losses"});
    ExpectErrorHas(refused({.losses = {{.name = "z", .weight = 0.0}}}), {"'z'", "positive, got 0"});
    ExpectErrorHas(refused({.losses = {{.name = "z", .divide_by = Divisor::kGiven}}}),
                   {"'z'", "divisor 0", "positive"});
    ExpectErrorHas(refused({.losses = {{.name = "z", .divisor = 2.0}}}),
                   {"'z'", "divisor 2", "kGiven"});
    auto loader = LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)});
    {
      Accumulation two(rank.model, {.losses = {{}, {.name = "z"}}});
      ExpectErrorHas(ErrorText([&] { two.Next(loader, CountTokens); }),
                     {"got 1 counts", "2 of the 2 losses"});
      ExpectErrorHas(ErrorText([&] { two.Stream(loader); }), {"2 losses", "use Next"});
      auto window = two.Next(loader, CountTokens, CountTokens);
      for (const Tokens& batch : *window) {
        const Recording on(rank.tape);
        ExpectErrorHas(ErrorText([&] { window->Backward(rank.Loss(batch)); }),
                       {"got 1 losses", "has 2"});
      }
    }
    Accumulation samples(rank.model, {.losses = {{.divide_by = Divisor::kSamples}}});
    auto more = LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)});
    ExpectErrorHas(ErrorText([&] {
                     samples.Next(more, [](const Tokens&) { return BatchCount{.items = 3}; });
                   }),
                   {"'loss'", "samples -1", "not what it is divided by"});
    ExpectErrorHas(ErrorText([&] { samples.Stream(more); }), {"got 0 counts"});
  });
}

}  // namespace
}  // namespace sherd::testing
