// Every stage, on meshes of one and two axes, gives the gradients of the unsharded model, under any
// pattern of synchronisation, and holds what its row of the table says.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/ops/reduce.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

struct Row {
  const char* name;
  Stage stage;
};

const Row kRows[] = {{"data parallel", kDataParallel},
                     {"zero 1", kZero1},
                     {"zero 2", kZero2},
                     {"zero 3", kZero3},
                     {"hybrid optimizer", kHybridOptimizer},
                     {"zero 3 everywhere", kZero3Everywhere},
                     {"zero 2 inside 1", {kShardGradients, kShardOptimizer}}};

// All ranks, how many of them along the shard axis.
using Ranks = std::pair<int, int>;
const Ranks kRanks[] = {{1, 1}, {2, 2}, {2, 1}, {3, 3}, {4, 4}, {4, 2}, {4, 1}};

// Four backwards of two calls each; the step of a backward picks its inputs.
Variable LossOf(ShardModel& model, const Device& device, int rank, int step) {
  const auto s = static_cast<uint64_t>(step);
  return Add(Energy(model(InputOf(device, rank, s), {0, 1, 2})),
             Energy(model(InputOf(device, rank, 10 + s), {2, 0})));
}
constexpr int kBackwards = 4;

Whole Reference(int ranks) {
  return PlainGradients(ranks, [](ShardModel& model, const Device& device, int rank) {
    Variable sum = LossOf(model, device, rank, 0);
    for (int step = 1; step < kBackwards; ++step) sum = Add(sum, LossOf(model, device, rank, step));
    return sum;
  });
}

// Which sync each of the backwards has; what is left is finished.
using Pattern = std::vector<GradientSync>;

void ExpectReference(Ranks ranks, const FullyShardOptions& options, const Pattern& pattern,
                     const Whole& want) {
  RunRanks(ranks.first, [&](World& world) {
    ShardModel model;
    ShardAll(model, world.MakeMesh(ranks.second), Sums(options));
    Initialize(model, world.device(), 1);
    PoisonFreeMemory(world.device());
    Tape tape;
    for (int step = 0; step < kBackwards; ++step) {
      SetGradientSync(model, pattern[static_cast<size_t>(step)]);
      const Recording on(tape);
      tape.Backward(LossOf(model, world.device(), world.rank(), step));
      tape.Reset();
    }
    FinishGradients(model);
    ExpectClose(GradientsOf(model, &world.group()), want);
  });
}

TEST(Stages, GiveThePlainGradientsUnderEveryPatternOfSynchronisation) {
  constexpr auto kNone = GradientSync::kNone, kCut = GradientSync::kCutOnly,
                 kFull = GradientSync::kFull;
  const Pattern patterns[] = {{kFull, kFull, kFull, kFull},
                              {kCut, kCut, kCut, kFull},
                              {kNone, kNone, kNone, kFull},
                              {kFull, kNone, kCut, kNone},
                              {kNone, kCut, kFull, kCut}};
  for (const Ranks& ranks : kRanks) {
    const Whole want = Reference(ranks.first);
    for (const Row& row : kRows) {
      for (const Pattern& pattern : patterns) {
        // All patterns on the meshes that differ in kind, the mixed one on the others.
        const bool kind = ranks.first < 3 || ranks == Ranks{4, 2};
        if (!kind && &pattern != &patterns[3]) continue;
        SCOPED_TRACE(absl::StrCat(row.name, ", ", ranks.first, " ranks, ", ranks.second,
                                  " inside, pattern ", &pattern - patterns));
        ExpectReference(ranks, {.stage = row.stage}, pattern, want);
      }
    }
  }
}

TEST(Stages, GiveThePlainGradientsWithEveryOtherOption) {
  const Pattern pattern = {GradientSync::kCutOnly, GradientSync::kNone, GradientSync::kFull,
                           GradientSync::kFull};
  for (const Ranks& ranks : {Ranks{1, 1}, Ranks{2, 2}, Ranks{4, 4}, Ranks{4, 2}}) {
    const Whole want = Reference(ranks.first);
    for (const Row& row : kRows) {
      for (const FullyShardOptions& options :
           {FullyShardOptions{.reshard_after_forward = false, .stage = row.stage},
            FullyShardOptions{.reshard_after_backward = false, .stage = row.stage},
            FullyShardOptions{.stage = row.stage, .reduce_once = true},
            FullyShardOptions{.prefetch = 2, .stage = row.stage, .offload = true}}) {
        SCOPED_TRACE(
            absl::StrCat(row.name, ", ", ranks.first, " ranks, ", ranks.second, " inside"));
        ExpectReference(ranks, options, pattern, want);
      }
    }
  }
}

TEST(Stages, AForwardMayLeaveTheParametersOnAFewRanks) {
  const Pattern full(kBackwards, GradientSync::kFull);
  const Whole want = Reference(4);
  for (const Stage& stage : {kZero3, kHybridOptimizer, kZero3Everywhere}) {
    ExpectReference({4, 4}, {.park = 2, .stage = stage}, full, want);
  }
  ExpectReference({4, 4}, {.park = 4}, full, want);
}

// Bytes of each category after a step, of one unit on four ranks, two of them inside.
TEST(Stages, HoldWhatTheTableSays) {
  struct Want {
    const char* name;
    Stage stage;
    int64_t parameters, gradients, pieces;  // into how many pieces each is cut
  };
  for (const Want& want :
       {Want{"data parallel", kDataParallel, 1, 1, 1}, Want{"zero 1", kZero1, 1, 2, 2},
        Want{"zero 2", kZero2, 1, 2, 2}, Want{"zero 3", kZero3, 2, 2, 2},
        Want{"hybrid optimizer", kHybridOptimizer, 2, 4, 4},
        Want{"everywhere", kZero3Everywhere, 4, 4, 4}}) {
    SCOPED_TRACE(want.name);
    RunRanks(4, [&](World& world) {
      ShardModel model(1);
      FullyShard(model, world.MakeMesh(2), Sums({.stage = want.stage}));
      Initialize(model, world.device(), 1);
      Tape tape;
      {
        const Recording on(tape);
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0})));
        tape.Reset();
      }
      GradientsOf(model, nullptr);
      const Layout& layout = UnitOf(model)->layout();
      const int64_t whole = layout.full_bytes();
      const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
      const MemoryStats stats = world.device().allocator().stats();
      EXPECT_EQ(stats[MemoryCategory::kParameterShard].current_bytes,
                rounded(whole / want.parameters));
      EXPECT_EQ(stats[MemoryCategory::kGradientShard].current_bytes,
                rounded(whole / want.gradients));
      EXPECT_EQ(stats[MemoryCategory::kGradient].current_bytes, 0);
      EXPECT_EQ(stats[MemoryCategory::kUnsharded].current_bytes, 0);
      EXPECT_EQ(layout.shard_bytes() * want.pieces, whole);
    });
  }
}

}  // namespace
}  // namespace sherd::testing
