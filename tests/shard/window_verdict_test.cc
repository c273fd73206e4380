// What a window refuses, on all ranks alike and with nothing changed: numbers that are not finite,
// scalars that nobody counted, windows left early.

#include <gtest/gtest.h>

#include <limits>

#include "tests/shard/one_weight.h"

namespace sherd::testing {
namespace {

// Rank 1's second micro-batch has an infinite gradient.
std::vector<Tokens> WithInfinity(const World& world) {
  const double infinity = std::numeric_limits<double>::infinity();
  return {Tokens::Of(1, 1.0), Tokens::Of(1, world.rank() == 1 ? infinity : 1.0)};
}

TEST(WindowVerdictTest, NonFiniteGradientIsAnErrorThatNamesTheParameterAndChangesNothing) {
  for (bool stream : {false, true}) {
    RunRanks(2, [&](World& world) {
      OneWeight rank(world);
      Accumulation accumulation(rank.model, {.micro_batches = 2});
      Sgd optimizer(rank.model.parameters());
      auto loader = LoaderFor(WithInfinity(world));
      const auto refused = [&](auto window) {
        rank.RunAll(*window);
        return ErrorText([&] { window->Finish(optimizer, 0.1); });
      };
      ExpectErrorHas(stream ? refused(accumulation.Stream(loader, CountTokens))
                            : refused(accumulation.Next(loader, CountTokens)),
                     {"[window.Finish]", "parameter 'weight' is not finite on rank 0",
                      "nothing was changed", "NonFinite::kError"});
      EXPECT_EQ(rank.Value(), 0.0);
      EXPECT_EQ(accumulation.steps(), 0);
      // The gradients are gone: the next window is clean without Recover.
      auto next =
          accumulation.Next(LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)}), CountTokens);
      rank.RunAll(*next);
      next->Finish(optimizer, 0.1);
      EXPECT_NEAR(rank.Value(), -0.1, 1e-15);
    });
  }
}

TEST(WindowVerdictTest, NonFiniteLossIsSeenThoughTheGradientIsFinite) {
  RunRanks(2, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model, {.losses = {{.name = "lm"}}});
    Sgd optimizer(rank.model.parameters());
    auto window =
        accumulation.Next(LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)}), CountTokens);
    for (const Tokens& batch : *window) {
      const Recording on(rank.tape);
      LossSum loss = rank.Loss(batch);
      const double more = world.rank() == 1 ? std::nan("") : 0.0;
      loss.value =
          Add(loss.value, Variable(Tensor::FromHost<double>(world.device(), {{more}}, {1})));
      window->Backward(loss);
    }
    ExpectErrorHas(ErrorText([&] { window->Finish(optimizer, 1e-3); }), {"the loss 'lm' is nan"});
  });
}

TEST(WindowVerdictTest, NonFiniteIsSkippedOrSteppedOnRequest) {
  for (const NonFinite policy : {NonFinite::kSkip, NonFinite::kStep}) {
    RunRanks(2, [&](World& world) {
      OneWeight rank(world);
      Accumulation accumulation(rank.model, {.micro_batches = 2});
      Sgd optimizer(rank.model.parameters());
      auto window = accumulation.Next(LoaderFor(WithInfinity(world)), CountTokens);
      rank.RunAll(*window);
      const StepResult result = window->Finish(optimizer, 0.1, {.non_finite = policy});
      const bool skips = policy == NonFinite::kSkip;
      EXPECT_EQ(result.skipped, skips);
      EXPECT_EQ(result.why, skips ? StepSkip::kNonFinite : StepSkip::kNone);
      EXPECT_EQ(accumulation.steps(), skips ? 0 : 1);
      EXPECT_EQ(std::isfinite(rank.Value()), skips);
    });
  }
}

TEST(WindowVerdictTest, BareScalarIsRefusedWithWhoDivides) {
  RunRanks(1, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model);
    auto window =
        accumulation.Next(LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)}), CountTokens);
    const Recording on(rank.tape);
    const Variable mean = rank.Loss(Tokens::Of(1, 1.0)).value;
    ExpectErrorHas(ErrorText([&] { window->Backward(mean); }),
                   {"[window.Backward]", "does not say how many items", "Accumulation"});
  });
}

TEST(WindowVerdictTest, DiscardedWindowLeavesNothing) {
  RunRanks(2, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model, {.micro_batches = 2});
    Sgd optimizer(rank.model.parameters());
    auto loader = LoaderFor(std::vector<Tokens>(4, Tokens::Of(1, 1.0)));
    auto window = accumulation.Next(loader, CountTokens);
    for (const Tokens& batch : *window) {
      const Recording on(rank.tape);
      window->Backward(rank.Loss(batch));
      break;
    }
    ExpectErrorHas(ErrorText([&] { window->Finish(optimizer, 1e-3); }), {"1 of 2 micro-batches"});
    window->Discard();
    ExpectErrorHas(ErrorText([&] { window->Discard(); }), {"finished already"});
    auto next = accumulation.Next(loader, CountTokens);
    EXPECT_EQ(next->step(), 1);
    rank.RunAll(*next);
    next->Finish(optimizer, 0.1);
    EXPECT_NEAR(rank.Value(), -0.1, 1e-15);
  });
}

TEST(WindowVerdictTest, DiscardOnOneRankAndFinishOnTheOtherIsAnErrorOnBoth) {
  RunRanksToTheirEnd(2, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model);
    Sgd optimizer(rank.model.parameters());
    auto window =
        accumulation.Next(LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)}), CountTokens);
    rank.RunAll(*window);
    const std::string text = ErrorText(
        [&] { world.rank() == 0 ? window->Discard() : (void)window->Finish(optimizer, 1e-3); });
    EXPECT_NE(text, "no error");
  });
}

TEST(WindowVerdictTest, LeavingAMicroBatchThatOthersFollowIsAnErrorOnAllRanks) {
  RunRanksToTheirEnd(2, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model);
    Sgd optimizer(rank.model.parameters());
    std::vector<Tokens> mine;
    if (world.rank() == 0) mine.push_back(Tokens::Of(1, 1.0));
    std::string text;
    {
      auto window = accumulation.Next(LoaderFor(mine), CountTokens);
      if (world.rank() == 0) {
        for (const Tokens& batch : *window) {
          const Recording on(rank.tape);
          rank.Loss(batch);
          break;  // without its backward
        }
        rank.tape.Reset();
      } else {
        text = ErrorText([&] { window->Finish(optimizer, 1e-3); });
      }
    }
    if (world.rank() == 0) {
      text = ErrorText([&] { accumulation.Next(LoaderFor(mine), CountTokens); });
    }
    EXPECT_TRUE(Contains(text, "left in a micro-batch that other ranks follow"));
  });
}

TEST(WindowVerdictTest, MicroBatchThatOthersFollowIsTakenFromTheWindow) {
  RunRanks(2, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model);
    std::vector<Tokens> mine;
    if (world.rank() == 0) mine.push_back(Tokens::Of(1, 1.0));
    auto window = accumulation.Next(LoaderFor(mine), CountTokens);
    EXPECT_EQ(window->batches().size(), mine.size());
    if (world.rank() == 1) return;
    const Recording on(rank.tape);
    ExpectErrorHas(ErrorText([&] { window->Backward(LossSum{}); }), {"other ranks follow"});
    EXPECT_EQ(ErrorText([&] { window->end(); }), "no error");
  });
}

TEST(WindowVerdictTest, UnevenMicroBatchesOverTwoMeshesAreRefusedOnAllRanks) {
  for (bool stream : {false, true}) {
    RunRanks(2, [&](World& world) {
      ShardModel model(2);
      FullyShard(model.block(0), world.MakeMesh(1));
      FullyShard(model, world.mesh());
      Initialize(model, world.device(), 1);
      Accumulation accumulation(model, {.micro_batches = 2});
      auto even = LoaderFor(std::vector<Tokens>(2, Tokens::Of(1, 1.0)));
      EXPECT_EQ(ErrorText([&] { accumulation.Next(even, CountTokens); }), "no error");
      auto uneven =
          LoaderFor(std::vector<Tokens>(static_cast<size_t>(1 + world.rank()), Tokens::Of(1, 1.0)));
      auto none =
          LoaderFor(std::vector<Tokens>(static_cast<size_t>(world.rank()), Tokens::Of(1, 1.0)));
      const std::string text = ErrorText([&] {
        if (!stream) {
          accumulation.Next(uneven, CountTokens);
        } else {
          auto window = accumulation.Stream(none, CountTokens);
          window->begin();
        }
      });
      ExpectErrorHas(text, {"different numbers of micro-batches", "'block0'", "another mesh"});
    });
  }
}

TEST(WindowVerdictTest, WindowWhoseUnitsWereSteppedIsNotDiscarded) {
  RunRanks(2, [](World& world) {
    OneWeight rank(world);
    OptimizerInBackward optimizer(rank.model, [](std::vector<Parameter> parameters) {
      return std::make_unique<Sgd>(std::move(parameters));
    });
    Accumulation accumulation(rank.model, {.micro_batches = 2, .in_backward = &optimizer});
    auto loader = LoaderFor(std::vector<Tokens>(4, Tokens::Of(1, 0.0)));
    for (int taken : {1, 2}) {
      auto window = accumulation.Next(loader, CountTokens);
      int k = 0;
      for (const Tokens& batch : *window) {
        const Recording on(rank.tape);
        window->Backward(rank.Loss(batch));
        if (++k == taken) break;
      }
      const std::string text = ErrorText([&] { window->Discard(); });
      EXPECT_TRUE(Contains(text, taken == 1 ? "no error" : "has stepped already"));
    }
  });
}

TEST(WindowVerdictTest, IteratingTwiceIsRefused) {
  RunRanks(1, [](World& world) {
    OneWeight rank(world);
    Accumulation accumulation(rank.model);
    auto window =
        accumulation.Next(LoaderFor(std::vector<Tokens>{Tokens::Of(1, 1.0)}), CountTokens);
    rank.RunAll(*window);
    ExpectErrorHas(ErrorText([&] { window->begin(); }), {"iterated over once", "batches()"});
  });
}

}  // namespace
}  // namespace sherd::testing
