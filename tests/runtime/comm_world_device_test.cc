// Worlds whose ranks compute on CUDA devices of the emulator, which threads stand for processes of.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/comm/world.h"
#include "tests/runtime/comm_support.h"
#include "tests/runtime/device_numbers.h"
#include "tests/support/cuda_emulator/emulator.h"

namespace sherd {
namespace {

using testing::Numbers;
using testing::Values;

// What `size` ranks of one host get that join with the options of `of`, and call `body` with.
void Join(int size, const std::function<WorldOptions(int)>& of,
          const std::function<void(absl::StatusOr<World>&, int)>& body) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      WorldOptions options = of(r);
      options.threads = 1;
      absl::StatusOr<World> world = World::FromStore(store, r, size, options);
      body(world, r);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Sums on the device, and on the host, and in the groups of meshes.
void ExpectSums(absl::StatusOr<World>& world, int size) {
  ASSERT_TRUE(world.ok()) << world.status();
  ASSERT_NE(world->device().backend(), nullptr);
  Numbers data(world->device(), {1, world->rank()});
  world->group().AllReduce(data.data(), 2, DType::kI32);
  const int32_t sum = size * (size - 1) / 2;
  EXPECT_EQ(data.Read(), (Values{size, sum}));
  Values host = {world->rank()};
  world->group().AllReduce(host.data(), 1, DType::kI32);
  EXPECT_EQ(host, Values{sum});
  const std::unique_ptr<ProcessGroup> fork = world->mesh().group().Fork("more");
  fork->Broadcast(data.data(), 8, 0);
  EXPECT_EQ(data.Read(), (Values{size, sum}));
  EXPECT_TRUE(world->Finish().ok());
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(CommWorldDevice, TheLocalRankChoosesAndNcclCarries) {
  emulated::Configure({.devices = 2});
  Join(
      2, [](int) { return WorldOptions{.device = DeviceKind::kCuda}; },
      [](absl::StatusOr<World>& world, int r) {
        ExpectSums(world, 2);
        EXPECT_EQ(world->device().id(), (DeviceId{DeviceKind::kCuda, r}));
        const std::string text = Describe(*world);
        EXPECT_TRUE(Has(text, "cuda:" + std::to_string(r) + " (")) << text;
        EXPECT_TRUE(Has(text, "driver nccl")) << text;
      });
  EXPECT_GT(emulated::ReadStatistics().collectives, 0);
}

TEST(CommWorldDevice, RanksThatShareADeviceGoThroughGlooWithAWarning) {
  emulated::Configure({.devices = 1});
  std::mutex mutex;
  std::string warnings;
  Join(
      2,
      [&](int) {
        return WorldOptions{.device = DeviceKind::kCuda,
                            .cuda_index = 0,
                            .cuda_memory_bytes = 64 << 20,
                            .log = [&](const LogRecord& record) {
                              std::lock_guard<std::mutex> lock(mutex);
                              if (record.level == LogLevel::kWarning) warnings += record.text;
                            }};
      },
      [](absl::StatusOr<World>& world, int) {
        ExpectSums(world, 2);
        EXPECT_TRUE(Has(Describe(*world), "driver gloo")) << Describe(*world);
      });
  EXPECT_TRUE(Has(warnings, "ranks 0 and 1 have one device, cuda:0")) << warnings;
  EXPECT_EQ(emulated::ReadStatistics().collectives, 0);
}

TEST(CommWorldDevice, NcclAskedForOnASharedDeviceIsAnError) {
  emulated::Configure({.devices = 1});
  Join(
      2,
      [](int) {
        return WorldOptions{
            .device = DeviceKind::kCuda, .cuda_index = 0, .driver = GroupDriver::kNccl};
      },
      [](absl::StatusOr<World>& world, int) {
        EXPECT_EQ(world.status().code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_TRUE(Has(world.status().ToString(), "ranks 0 and 1 have one device, cuda:0"))
            << world.status();
      });
}

TEST(CommWorldDevice, TooFewDevicesAreAnErrorOnAllRanks) {
  emulated::Configure({.devices = 2});
  Join(
      3, [](int) { return WorldOptions{.device = DeviceKind::kCuda}; },
      [](absl::StatusOr<World>& world, int) {
        EXPECT_EQ(world.status().code(), absl::StatusCode::kNotFound);
        EXPECT_TRUE(Has(world.status().ToString(),
                        "rank 2: there is no cuda:2 for local rank 2 of 3: this process sees 2"))
            << world.status();
      });
}

TEST(CommWorldDevice, NoDeviceIsAnErrorThatSaysWhy) {
  emulated::Configure({.devices = 0});
  Join(
      2, [](int) { return WorldOptions{.device = DeviceKind::kCuda}; },
      [](absl::StatusOr<World>& world, int) {
        EXPECT_EQ(world.status().code(), absl::StatusCode::kNotFound);
        EXPECT_TRUE(Has(world.status().ToString(), "no CUDA device")) << world.status();
      });
  emulated::Configure({});
}

TEST(CommWorldDevice, OneRankAloneCopiesAndRounds) {
  emulated::Configure({.devices = 1});
  absl::StatusOr<World> world =
      World::FromStore(nullptr, 0, 1, {.device = DeviceKind::kCuda, .threads = 1});
  ExpectSums(world, 1);
  Numbers from(world->device(), {0x3f800001, 0x3f808000});  // 1 + 2^-23, 1 + 2^-8
  Numbers to(world->device(), {0, 0});
  world->group().ReduceScatter(from.data(), to.data(), 2, {DType::kF32, DType::kBF16, DType::kF32},
                               /*add=*/false);
  EXPECT_EQ(to.Read(), (Values{0x3f800000, 0x3f800000}));
  world->mesh().replicate_group().AllReduce(from.data(), 2, DType::kF32, DType::kBF16);
  EXPECT_EQ(from.Read(), (Values{0x3f800000, 0x3f800000}));
  EXPECT_EQ(emulated::ReadStatistics().collectives, 0);
}

}  // namespace
}  // namespace sherd
