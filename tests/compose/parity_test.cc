// The parity grid: gradients of every composition equal those of the unsharded model on one rank.
//
// Every triple of checkpoint x reshard x calls on every number of ranks; micro-batches, policies
// and prefetch rotate so that every pair of values of any two dimensions occurs. The whole product
// is in parity_full_test.

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/compose/parity.h"

namespace sherd::testing {
namespace {

std::vector<GridCase> Covering(int ranks) {
  std::vector<GridCase> cases;
  int k = 0;
  for (CheckpointOrder order :
       {CheckpointOrder::kOff, CheckpointOrder::kInside, CheckpointOrder::kOutside}) {
    for (bool reshard : {true, false}) {
      for (int calls : {1, 2, 3}) {
        const int policies = order == CheckpointOrder::kOff ? 1 : 2;
        for (int n = 0; n < policies; ++n, ++k) {
          cases.push_back({.ranks = ranks,
                           .micro_batches = 1 + (k + ranks) % 3,
                           .checkpoint = order,
                           .policy = static_cast<GridPolicy>((k + ranks) % kGridPolicies),
                           .reshard = reshard,
                           .prefetch = (k / 3 + k + 2 * ranks) % 3,
                           .calls = calls});
        }
      }
    }
  }
  return cases;
}

// The case as numbers; the policy of a case without checkpoints is none.
std::array<int, 7> ValuesOf(const GridCase& c) {
  const bool off = c.checkpoint == CheckpointOrder::kOff;
  return {c.ranks,
          c.micro_batches,
          static_cast<int>(c.checkpoint),
          off ? -1 : static_cast<int>(c.policy),
          c.reshard ? 1 : 0,
          c.calls,
          c.prefetch};
}

using Pair = std::tuple<size_t, int, size_t, int>;

std::set<Pair> PairsOf(const std::vector<GridCase>& cases) {
  std::set<Pair> pairs;
  for (const GridCase& c : cases) {
    const std::array<int, 7> values = ValuesOf(c);
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = i + 1; j < values.size(); ++j) pairs.insert({i, values[i], j, values[j]});
    }
  }
  return pairs;
}

TEST(ParityGrid, CoversEveryPair) {
  std::vector<GridCase> covering, all;
  for (int ranks : {1, 2, 3, 4}) {
    for (const GridCase& c : Covering(ranks)) covering.push_back(c);
    for (int k = 0; k < 3 * 3 * 2 * 3 * 3 * kGridPolicies; ++k) {
      all.push_back({.ranks = ranks,
                     .micro_batches = 1 + k % 3,
                     .checkpoint = static_cast<CheckpointOrder>(k / 3 % 3),
                     .policy = static_cast<GridPolicy>(k / 162),
                     .reshard = k / 9 % 2 == 1,
                     .prefetch = k / 54 % 3,
                     .calls = 1 + k / 18 % 3});
    }
  }
  const std::set<Pair> got = PairsOf(covering), want = PairsOf(all);
  for (const auto& [i, a, j, b] : want) {
    EXPECT_TRUE(got.count({i, a, j, b}) != 0)
        << "dimension " << i << " = " << a << " never meets dimension " << j << " = " << b;
  }
}

class ParityTest : public ::testing::TestWithParam<int> {};

TEST_P(ParityTest, EveryTripleOfCheckpointReshardAndCallsInF64) {
  for (const GridCase& c : Covering(GetParam())) ExpectParity(c);
}

TEST_P(ParityTest, InF32) {
  int k = 0;
  for (CheckpointOrder order :
       {CheckpointOrder::kOff, CheckpointOrder::kInside, CheckpointOrder::kOutside}) {
    for (int calls : {1, 2}) {
      ExpectParity({.dtype = DType::kF32,
                    .ranks = GetParam(),
                    .micro_batches = 1 + k % 3,
                    .checkpoint = order,
                    .policy = static_cast<GridPolicy>(k % kGridPolicies),
                    .reshard = k % 2 == 1,
                    .calls = calls});
      ++k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParityTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return absl::StrCat("W", info.param); });

}  // namespace
}  // namespace sherd::testing
