// The parity grid with ranks on an accelerator: gradients of every composition equal those of the
// unsharded model on one CPU rank. Ranks share the first device through page-locked memory
// (Staged), or have a device each and talk by NCCL (Nccl). Launched: this process is one rank of
// those that RANK, WORLD_SIZE and MASTER_ADDR describe, by NCCL.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/cuda/cuda_device.h"
#include "tests/compose/parity.h"
#include "tests/support/ranks.h"
#ifdef SHERD_CUDA_EMULATED
#include "tests/support/cuda_emulator/emulator.h"
#endif

namespace sherd::testing {
namespace {

// Of a device that several ranks share.
constexpr int64_t kMemoryBytes = int64_t{1} << 28;

// Every order, call count, policy and precision at least once; the rest rotates.
std::vector<GridCase> CasesOf(int ranks) {
  std::vector<GridCase> cases;
  int k = 0;
  for (CheckpointOrder order :
       {CheckpointOrder::kOff, CheckpointOrder::kInside, CheckpointOrder::kOutside}) {
    for (int calls : {1, 3}) {
      cases.push_back({.ranks = ranks,
                       .micro_batches = 1 + (k + ranks) % 3,
                       .checkpoint = order,
                       .policy = static_cast<GridPolicy>((2 * k + ranks) % kGridPolicies),
                       .reshard = k % 2 == 0,
                       .prefetch = (k + ranks) % 3,
                       .calls = calls});
      ++k;
    }
  }
  cases.push_back({.ranks = ranks,
                   .micro_batches = 2,
                   .checkpoint = CheckpointOrder::kInside,
                   .policy = GridPolicy::kOffload});
  cases.push_back({.dtype = DType::kF32, .ranks = ranks, .checkpoint = CheckpointOrder::kInside});
  cases.push_back({.dtype = DType::kF32,
                   .ranks = ranks,
                   .checkpoint = CheckpointOrder::kInside,
                   .precision = {.parameters = DType::kBF16, .reduce = DType::kBF16}});
  if (ranks == 4) {
    cases.push_back({.ranks = ranks, .micro_batches = 2, .inside = 2, .sync = WindowSync::kLast});
  }
  return cases;
}

int Devices(std::string* why) {
#ifdef SHERD_CUDA_EMULATED
  emulated::Configure({.devices = 4});
#endif
  return CountCudaDevices(why);
}

class DeviceParity : public ::testing::TestWithParam<int> {
 protected:
  void RunOn(const RankOptions& options, int devices) {
    std::string why;
    const int there = Devices(&why);
    if (there == 0) GTEST_SKIP() << why;
    if (there < devices) GTEST_SKIP() << there << " devices, not " << devices;
    [[maybe_unused]] int k = GetParam();
    for (const GridCase& c : CasesOf(GetParam())) {
#ifdef SHERD_CUDA_EMULATED
      // Slow there: of each number of ranks and transport half the cases, those of f32 always.
      if (++k % 2 == (options.driver == GroupDriver::kGloo ? 0 : 1) && c.dtype == DType::kF64) {
        continue;
      }
#endif
      ExpectParity(
          c,
          [&](int ranks, const std::function<void(World&)>& body) {
            RunRanks(ranks, body, options);
          },
          options);
      if (HasFailure()) return;
    }
  }
};

TEST_P(DeviceParity, Staged) {
  RunOn({.device = DeviceKind::kCuda,
         .cuda_index = 0,
         .cuda_memory_bytes = kMemoryBytes,
         .driver = GroupDriver::kGloo},
        1);
}

TEST_P(DeviceParity, Nccl) {
  RunOn({.device = DeviceKind::kCuda,
         .cuda_memory_bytes = kMemoryBytes,
         .driver = GroupDriver::kNccl},
        GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceParity, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return absl::StrCat("W", info.param); });

TEST(LaunchedDeviceParity, Nccl) {
  if (std::getenv("SHERD_TEST_LAUNCHED") == nullptr) {
    GTEST_SKIP() << "SHERD_TEST_LAUNCHED is not set";
  }
  const char* const index = std::getenv("SHERD_TEST_DEVICE");
  const RankOptions alone = {.device = DeviceKind::kCuda,
                             .cuda_index = index == nullptr ? 0 : std::atoi(index),
                             .cuda_memory_bytes = kMemoryBytes};
  absl::StatusOr<World> world =
      World::FromEnvironment({.device = DeviceKind::kCuda,
                              .cuda_index = index == nullptr ? -1 : std::atoi(index),
                              .cuda_memory_bytes = kMemoryBytes,
                              .driver = GroupDriver::kNccl});
  ASSERT_TRUE(world.ok()) << world.status();
  for (const GridCase& c : CasesOf(world->size())) {
    ExpectParity(
        c, [&](int, const std::function<void(World&)>& body) { body(*world); }, alone);
  }
  const absl::Status left = world->Finish();
  EXPECT_TRUE(left.ok()) << left;
}

}  // namespace
}  // namespace sherd::testing
