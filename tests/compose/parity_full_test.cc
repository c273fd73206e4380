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

// Stages x meshes x synchronisation x precision x offload x checkpoints, whole; what else a case
// has goes round. Reductions once, parking and kept units are in the covering array.
class StageFullTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(StageFullTest, EveryCombination) {
  const auto [mesh, stage] = GetParam();
  int k = mesh + stage;
  for (const CheckpointOrder order :
       {CheckpointOrder::kOff, CheckpointOrder::kInside, CheckpointOrder::kOutside}) {
    for (const WindowSync sync : {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast}) {
      for (const bool offload : {false, true}) {
        for (int precision = 0; precision < 4; ++precision, ++k) {
          GridCase c{.dtype = precision == 0 ? DType::kF64 : DType::kF32,
                     .ranks = kGridMeshes[static_cast<size_t>(mesh)].first,
                     .micro_batches = 1 + k % 3,
                     .checkpoint = order,
                     .policy = static_cast<GridPolicy>(k % kGridPolicies),
                     .reshard = k % 5 != 0,
                     .prefetch = k / 2 % 3,
                     .calls = 1 + k / 3 % 3,
                     .stage = kGridStages[static_cast<size_t>(stage)],
                     .inside = kGridMeshes[static_cast<size_t>(mesh)].second,
                     .sync = sync,
                     .offload = offload,
                     .reduce_once = k % 4 == 1};
          if (precision >= 2) c.precision.parameters = DType::kBF16;
          if (precision == 3) c.precision.reduce = DType::kBF16;
          ExpectParity(c);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grid, StageFullTest,
    ::testing::Combine(::testing::Range(0, static_cast<int>(kGridMeshes.size())),
                       ::testing::Range(0, static_cast<int>(kGridStages.size()))),
    [](const auto& info) {
      return absl::StrCat("mesh", std::get<0>(info.param), "_stage", std::get<1>(info.param));
    });

}  // namespace
}  // namespace sherd::testing
