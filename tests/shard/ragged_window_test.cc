// However samples are split over ranks and micro-batches, a window gives the same gradients and
// logs the same loss: those of the plain model with all samples at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "tests/shard/ragged.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

int64_t Items(const Samples& batch) { return batch.items(); }

struct Outcome {
  StepResult result;
  Whole gradients;
};

// One window of everything on a model that is not sharded. The sum is divided by hand.
Outcome Reference() {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    RaggedRank rank(world, {.sharded = false});
    Samples all;
    for (int i = 0; i < kSamples; ++i) all.samples.push_back(i);
    const Recording on(rank.tape, rank.Randomness(1, all));
    const LossSum loss = rank.Loss(all);
    rank.tape.Backward(loss.value, 1.0 / 12.0);
    outcome.result.loss = *loss.value.value().data<double>() / 12.0;
    outcome.gradients = GradientsOf(rank.model, nullptr);
  });
  return outcome;
}

enum class Form { kNext, kStream };

template <typename Rank, typename Window>
void RunMicroBatches(Rank& rank, Window& window) {
  for (const Samples& batch : window) {
    const Recording on(rank.tape, rank.Randomness(window.step(), batch));
    window.Backward(rank.Loss(batch));
  }
}

Outcome RunSplit(World& world, int rows, const RaggedSetup& setup, WindowSync sync, Form form) {
  RaggedRank rank(world, setup);
  Accumulation accumulation(rank.model, {.micro_batches = kSamples, .sync = sync});
  KeepStep optimizer(rank.model, &world.group());
  auto loader = LoaderFor(DealOut(rows, world.rank(), world.size()));
  Outcome outcome;
  if (form == Form::kNext) {
    auto window = accumulation.Next(loader, Items);
    EXPECT_EQ(window->items(), 12);
    RunMicroBatches(rank, *window);
    outcome.result = window->Finish(optimizer, 1e-3);
    EXPECT_FALSE(accumulation.Next(loader, Items).has_value());
  } else {
    auto window = accumulation.Stream(loader, Items);
    RunMicroBatches(rank, *window);
    outcome.result = window->Finish(optimizer, 1e-3);
    EXPECT_FALSE(accumulation.Stream(loader, Items).has_value());
  }
  outcome.gradients = optimizer.gradients;
  for (const auto& [name, values] : optimizer.gradients) EXPECT_FALSE(values.empty()) << name;
  return outcome;
}

class RaggedWindowTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RaggedWindowTest, GradientsAndLossAreThoseOfAllSamplesAtOnce) {
  const auto [ranks, rows] = GetParam();
  const Outcome want = Reference();
  RunRanks(ranks, [&, rows = rows](World& world) {
    for (const bool checkpoint : {false, true}) {
      for (const WindowSync sync :
           {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast}) {
        for (const Form form : {Form::kNext, Form::kStream}) {
          SCOPED_TRACE(absl::StrCat("checkpoint ", checkpoint, ", sync ", static_cast<int>(sync),
                                    ", form ", static_cast<int>(form)));
          const Outcome got = RunSplit(world, rows, {.checkpoint = checkpoint}, sync, form);
          EXPECT_NEAR(got.result.loss, want.result.loss, 1e-12 * want.result.loss);
          EXPECT_EQ(got.result.items, 12);
          EXPECT_FALSE(got.result.skipped);
          ExpectClose(got.gradients, want.gradients);
        }
      }
    }
  });
}

// 6, 3, 2 and 1 micro-batches of 1, 2, 3 and 6 samples; with 4 ranks some have none. Sanitizers,
// which take many times as long, see some of the splits.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
const auto kRanks = ::testing::Values(2, 3);
const auto kRows = ::testing::Values(1, 3);
#else
const auto kRanks = ::testing::Values(1, 2, 3, 4);
const auto kRows = ::testing::Values(1, 2, 3, 6);
#endif
INSTANTIATE_TEST_SUITE_P(Splits, RaggedWindowTest, ::testing::Combine(kRanks, kRows),
                         [](const auto& info) {
                           return absl::StrCat("Ranks", std::get<0>(info.param), "Rows",
                                               std::get<1>(info.param));
                         });

// Whatever the units do with their gathers and reductions, ranks without a micro-batch do likewise.
struct Choreography {
  const char* name;
  int ranks = 2;
  int inside = 0;  // ranks along the shard axis; 0: all
  RaggedSetup setup = {};
};

class RaggedChoreographyTest : public ::testing::TestWithParam<Choreography> {};

void FollowTwice(World& world, const Mesh& mesh, const RaggedSetup& setup, WindowSync sync,
                 int rows, const Outcome& want) {
  RaggedRank rank(world, setup, &mesh);
  Accumulation accumulation(rank.model, {.micro_batches = kSamples, .sync = sync});
  KeepStep optimizer(rank.model, &world.group());
  // Twice: gathers start ahead in the order seen.
  for (int step = 0; step < 2; ++step) {
    PoisonFreeMemory(world.device());
    auto window = accumulation.Next(LoaderFor(DealOut(rows, world.rank(), world.size())), Items);
    accumulation.set_steps(0);
    RunMicroBatches(rank, *window);
    const StepResult result = window->Finish(optimizer, 1e-3);
    EXPECT_NEAR(result.loss, want.result.loss, 1e-12 * want.result.loss);
    ExpectClose(optimizer.gradients, want.gradients);
  }
  for (const Unit* unit : UnitsOf(rank.model)) EXPECT_FALSE(unit->gradients_pending());
}

TEST_P(RaggedChoreographyTest, RanksWithoutAMicroBatchFollow) {
  const Choreography& c = GetParam();
  const Outcome want = Reference();
  RunRanks(c.ranks, [&](World& world) {
    const Mesh mesh = c.inside > 0 ? world.MakeMesh(c.inside) : world.mesh();
    for (const WindowSync sync : {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast}) {
      for (int rows : {1, 3}) {
        SCOPED_TRACE(absl::StrCat("sync ", static_cast<int>(sync), ", ", rows, " rows"));
        FollowTwice(world, mesh, c.setup, sync, rows, want);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Choreographies, RaggedChoreographyTest,
    ::testing::Values(
        Choreography{"DataParallel", 3, 0, {.options = {.stage = kDataParallel}}},
        Choreography{"Zero1", 3, 0, {.options = {.stage = kZero1}}},
        Choreography{"Zero2", 3, 0, {.options = {.stage = kZero2}}},
        Choreography{"Hybrid", 4, 2, {.options = {.stage = kZero3}}},
        Choreography{"HybridCheckpoint", 4, 2, {.checkpoint = true}},
        Choreography{"HybridOptimizer", 4, 2, {.options = {.stage = kHybridOptimizer}}},
        Choreography{"KeepAfterForward", 3, 0, {.options = {.reshard_after_forward = false}}},
        Choreography{"KeepAfterBackward", 3, 0, {.options = {.reshard_after_backward = false}}},
        Choreography{"Prefetch2", 3, 0, {.options = {.prefetch = 2}}},
        Choreography{
            "NoPrefetchCheckpoint", 3, 0, {.checkpoint = true, .options = {.prefetch = 0}}},
        Choreography{"Park", 4, 0, {.options = {.park = 2}}},
        Choreography{"ReduceOnce", 3, 0, {.options = {.reduce_once = true}}},
        Choreography{
            "ReduceOnceCheckpoint", 3, 0, {.checkpoint = true, .options = {.reduce_once = true}}},
        Choreography{"Offload", 3, 0, {.options = {.offload = true}}},
        Choreography{"CheckpointOutside", 3, 0, {.checkpoint_outside = true}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sherd::testing
