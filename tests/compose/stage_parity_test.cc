// The parity grid over what a unit's options say: stages, meshes, synchronisation, precision,
// offload, parking, crossed with checkpoints, calls and micro-batches. Every pair of values of any
// two dimensions occurs, in cases that are the same in every run.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "sherd/runtime/core/random.h"
#include "tests/compose/parity.h"

namespace sherd::testing {
namespace {

enum Dimension : size_t {
  kMesh,
  kStage,
  kSync,
  kCheckpoint,
  kLifetime,
  kOffloaded,
  kOnce,
  kCalls,
  kMicroBatches,
  kPrefetch,
  kPrecision,
  kDimensions
};
constexpr auto kMeshes = static_cast<int>(kGridMeshes.size());
constexpr auto kStages = static_cast<int>(kGridStages.size());
constexpr std::array<int, kDimensions> kValues = {kMeshes, kStages, 3, 3, 4, 2, 2, 3, 3, 3, 4};
using Point = std::array<int, kDimensions>;

constexpr int kParks = 3;  // of kLifetime: reshard, stay after the forward, stay after both, park

// Whether the point is one that can be run: only what is cut over four ranks can be parked on two.
bool IsPossible(const Point& p) {
  return p[kLifetime] != kParks || (kGridMeshes[static_cast<size_t>(p[kMesh])].second == 4 &&
                                    kGridStages[static_cast<size_t>(p[kStage])].shard == kShardAll);
}

GridCase CaseOf(const Point& p) {
  const auto [ranks, inside] = kGridMeshes[static_cast<size_t>(p[kMesh])];
  GridCase c{.dtype = p[kPrecision] == 0 ? DType::kF64 : DType::kF32,
             .ranks = ranks,
             .micro_batches = 1 + p[kMicroBatches],
             .checkpoint = static_cast<CheckpointOrder>(p[kCheckpoint]),
             .reshard = p[kLifetime] != 1,
             .prefetch = p[kPrefetch],
             .calls = 1 + p[kCalls],
             .stage = kGridStages[static_cast<size_t>(p[kStage])],
             .inside = inside,
             .sync = static_cast<WindowSync>(p[kSync]),
             .offload = p[kOffloaded] == 1,
             .reduce_once = p[kOnce] == 1,
             .keep = p[kLifetime] == 2,
             .park = p[kLifetime] == kParks ? 2 : 0};
  if (p[kPrecision] >= 2) c.precision.parameters = DType::kBF16;
  if (p[kPrecision] == 3) c.precision.reduce = DType::kBF16;
  return c;
}

using Pair = std::tuple<size_t, int, size_t, int>;

std::set<Pair> PairsOf(const Point& p) {
  std::set<Pair> pairs;
  for (size_t i = 0; i < kDimensions; ++i) {
    for (size_t j = i + 1; j < kDimensions; ++j) pairs.insert({i, p[i], j, p[j]});
  }
  return pairs;
}

// Points that together have every possible pair: for each pair that is missing, of some random
// points with it the one that brings most.
std::vector<Point> Covering() {
  uint64_t state = 1;
  const auto random = [&](int n) {
    state = Mix64(state, 7);
    return static_cast<int>(state % static_cast<uint64_t>(n));
  };
  std::vector<Point> points;
  std::set<Pair> covered;
  for (size_t i = 0; i < kDimensions; ++i) {
    for (size_t j = i + 1; j < kDimensions; ++j) {
      for (int pair = 0; pair < kValues[i] * kValues[j]; ++pair) {
        const int a = pair / kValues[j], b = pair % kValues[j];
        if (covered.count({i, a, j, b}) != 0) continue;
        Point best{};
        size_t most = 0;
        for (int tries = 0; tries < 60; ++tries) {
          Point p;
          for (size_t d = 0; d < kDimensions; ++d) p[d] = random(kValues[d]);
          p[i] = a;
          p[j] = b;
          if (!IsPossible(p)) continue;
          size_t fresh = 0;
          for (const Pair& candidate : PairsOf(p)) fresh += covered.count(candidate) == 0 ? 1 : 0;
          if (fresh > most) {
            most = fresh;
            best = p;
          }
        }
        if (most == 0) continue;
        points.push_back(best);
        covered.merge(PairsOf(best));
      }
    }
  }
  return points;
}

TEST(StageParity, CoversEveryPossiblePair) {
  std::set<Pair> covered;
  for (const Point& p : Covering()) covered.merge(PairsOf(p));
  int missing = 0;
  for (size_t i = 0; i < kDimensions; ++i) {
    for (size_t j = i + 1; j < kDimensions; ++j) {
      for (int pair = 0; pair < kValues[i] * kValues[j]; ++pair) {
        missing += covered.count({i, pair / kValues[j], j, pair % kValues[j]}) == 0 ? 1 : 0;
      }
    }
  }
  // Parking with five of the six meshes and with the four stages that do not cut parameters inside
  // or cut them over both axes' four ranks.
  EXPECT_EQ(missing, 5 + 4);
}

class StageParityTest : public ::testing::TestWithParam<int> {};

TEST_P(StageParityTest, EveryPairOfOptions) {
  for (const Point& p : Covering()) {
    if (kGridMeshes[static_cast<size_t>(p[kMesh])].first == GetParam()) ExpectParity(CaseOf(p));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, StageParityTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return "W" + std::to_string(info.param); });

}  // namespace
}  // namespace sherd::testing
