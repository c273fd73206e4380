// The parity grid, whole: every combination. Run by `tests/run.sh --full`.

#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/compose/parity.h"

namespace sherd::testing {
namespace {

class ParityFullTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ParityFullTest, EveryCombination) {
  const auto [ranks, policy] = GetParam();
  const bool off = policy < 0;
  for (CheckpointOrder order : {CheckpointOrder::kInside, CheckpointOrder::kOutside}) {
    if (off && order == CheckpointOrder::kOutside) break;
    for (int micro_batches : {1, 2, 3}) {
      for (bool reshard : {true, false}) {
        for (int calls : {1, 2, 3}) {
          for (int prefetch : {0, 1, 2}) {
            ExpectParity({.ranks = ranks,
                          .micro_batches = micro_batches,
                          .checkpoint = off ? CheckpointOrder::kOff : order,
                          .policy = off ? GridPolicy::kFull : static_cast<GridPolicy>(policy),
                          .reshard = reshard,
                          .prefetch = prefetch,
                          .calls = calls});
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, ParityFullTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Range(-1, kGridPolicies)),
                         [](const auto& info) {
                           const int policy = std::get<1>(info.param);
                           return absl::StrCat("W", std::get<0>(info.param), "_",
                                               policy < 0 ? "off" : absl::StrCat("policy", policy));
                         });

}  // namespace
}  // namespace sherd::testing
