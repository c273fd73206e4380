// An evaluation ends on all ranks together and is the mean over items, however batches are spread.

#include "sherd/shard/evaluation.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/shard/one_weight.h"
#include "tests/shard/ragged.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

TEST(EvaluationTest, MeanIsThatOfAllSamplesForAnyNumberOfBatchesOnEachRank) {
  double want = 0.0;
  RunRanks(1, [&](World& world) {
    RaggedRank rank(world, {.sharded = false});
    Samples all;
    for (int i = 0; i < kSamples; ++i) all.samples.push_back(i);
    want = *rank.Loss(all).value.value().data<double>() / 12.0;
  });
  for (int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, [&](World& world) {
      for (const bool checkpoint : {false, true}) {
        RaggedRank rank(world, {.checkpoint = checkpoint});
        for (int rows : {1, 2, 3, 6}) {
          const EvaluationResult result =
              Evaluate(rank.model, LoaderFor(DealOut(rows, world.rank(), world.size())),
                       [&](const Samples& batch) { return rank.Loss(batch); });
          EXPECT_NEAR(result.loss, want, 1e-12 * want) << ranks << " ranks, " << rows << " rows";
          EXPECT_EQ(result.items, 12);
          EXPECT_EQ(result.batches, kSamples / rows);
          for (const Unit* unit : UnitsOf(rank.model)) {
            EXPECT_FALSE(unit->unsharded()) << unit->name();
          }
        }
      }
    });
  }
}

TEST(EvaluationTest, BatchWithoutItemsAddsNothingEvenIfItsValueIsNaN) {
  RunRanks(2, [](World& world) {
    RaggedRank rank(world, {});
    const auto forward = [&](const Samples& batch) {
      LossSum loss = rank.Loss(batch);
      if (loss.items == 0) loss.value = Scale(loss.value, std::nan(""));
      return loss;
    };
    const EvaluationResult result =
        Evaluate(rank.model, LoaderFor(DealOut(1, world.rank(), world.size())), forward);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_EQ(result.items, 12);
  });
}

TEST(EvaluationTest, NoBatchesAnywhereIsZeroOfNoItems) {
  RunRanks(2, [](World& world) {
    RaggedRank rank(world, {});
    const EvaluationResult result =
        Evaluate(rank.model, LoaderFor(std::vector<Samples>()),
                 [&](const Samples& batch) { return rank.Loss(batch); });
    EXPECT_EQ(result.loss, 0.0);
    EXPECT_EQ(result.items, 0);
    EXPECT_EQ(result.batches, 0);
  });
}

TEST(EvaluationTest, FailureOfOneRankEndsThoseThatFollowWithItsReason) {
  RunRanksToTheirEnd(2, [](World& world) {
    RaggedRank rank(world, {});
    // Rank 0 alone has a batch.
    const std::string text = ErrorText([&] {
      Evaluate(rank.model, LoaderFor(DealOut(6, world.rank(), world.size())),
               [&](const Samples&) -> LossSum { ThrowInvalidArgument("the metric broke"); });
    });
    EXPECT_TRUE(Contains(text, "the metric broke"));
  });
}

TEST(EvaluationTest, RecordingIsRefused) {
  RunRanks(1, [](World& world) {
    RaggedRank rank(world, {});
    const Recording on(rank.tape);
    EXPECT_TRUE(Contains(ErrorText([&] {
                           Evaluate(rank.model, LoaderFor(std::vector<Samples>()),
                                    [&](const Samples& batch) { return rank.Loss(batch); });
                         }),
                         "a Recording is on"));
  });
}

}  // namespace
}  // namespace sherd::testing
