// Groups over NCCL of the emulator, beyond what comm_group_test and comm_wire_test see: what is
// queued and what waits, which way buffers go, and how ranks fail.
#include "sherd/runtime/comm/nccl_group.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/cuda/cuda_device.h"
#include "tests/runtime/comm_support.h"
#include "tests/runtime/device_numbers.h"
#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/ranks.h"

namespace sherd {
namespace {

using testing::ExpectHas;
using testing::Numbers;
using testing::RunFailing;
using testing::RunRanks;
using testing::Thrown;
using testing::Values;

struct Rank {
  World& world;
  Device device;
  std::unique_ptr<ProcessGroup> group;
  int rank() const { return world.rank(); }
};

Device Open(int index) {
  absl::StatusOr<Device> device = OpenCuda({.index = index});
  ThrowIfError(device.status());
  return *std::move(device);
}

// Calls `body` on each of `size` ranks with a device of its own.
std::function<void(World&)> OnDevices(const std::function<void(Rank&)>& body,
                                      const NcclOptions& options = {}) {
  return [&body, options](World& world) {
    Device device = Open(world.rank());
    std::shared_ptr<ProcessGroup> control = world.group().Fork("control");
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ConnectNccl(control, device, options);
    ThrowIfError(group.status());
    Rank rank{world, std::move(device), *std::move(group)};
    body(rank);
  };
}

void RunOnDevices(int size, const std::function<void(Rank&)>& body,
                  const NcclOptions& options = {}) {
  emulated::Configure({.devices = size});
  RunRanks(size, OnDevices(body, options));
}
void FailOnDevices(int size, const std::function<void(Rank&)>& body,
                   const NcclOptions& options = {},
                   absl::Duration control_timeout = absl::Seconds(60)) {
  emulated::Configure({.devices = size});
  RunFailing(size, OnDevices(body, options), {.collective_timeout = control_timeout});
}

// Waits until the group has failed, as a step does at its end.
absl::Status AwaitFailure(const ProcessGroup& group) {
  for (int i = 0; i < 2000 && group.Failure().ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return group.Failure();
}

TEST(CommNccl, ACallReturnsBeforeItsPeersHaveCome) {
  std::atomic<bool> queued{false};
  RunOnDevices(2, [&](Rank& r) {
    Numbers data(r.device, {r.rank(), 1});
    r.group->AllReduce(data.data(), 2, DType::kI32);  // connects
    if (r.rank() == 1) {
      while (!queued) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    r.group->AllReduce(data.data(), 2, DType::kI32);
    queued = true;
    EXPECT_TRUE(r.group->Queues());
    EXPECT_EQ(data.Read(), (Values{2, 4}));
  });
}

TEST(CommNccl, BuffersOfTheHostGoToTheControlGroup) {
  RunOnDevices(2, [](Rank& r) {
    Values data = {r.rank(), 1};
    r.group->AllReduce(data.data(), 2, DType::kI32);
    r.group->Broadcast(data.data(), 8, 0);
    r.group->Barrier();
    EXPECT_EQ(data, (Values{1, 2}));
  });
  EXPECT_EQ(emulated::ReadStatistics().collectives, 0);
}

TEST(CommNccl, BuffersOfTwoKindsAreRefused) {
  RunOnDevices(2, [](Rank& r) {
    Values host(4);
    Numbers shard(r.device, {1, 2});
    const Error error = Thrown([&] { r.group->AllGather(shard.data(), host.data(), 8); });
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    ExpectHas(error, {"memory of cuda:" + std::to_string(r.rank()), "the other is not"});
  });
}

TEST(CommNccl, SumsOfWholeTypesAreNcclsOwn) {
  RunOnDevices(3, [](Rank& r) {
    Numbers full(r.device, {1, 2, 3, 4, 5, 6});
    Numbers shard(r.device, {9, 9});
    r.group->ReduceScatter(full.data(), shard.data(), 2, DType::kI32, /*add=*/false);
    const int32_t first = 3 * (2 * r.rank() + 1);
    EXPECT_EQ(shard.Read(), (Values{first, first + 3}));
  });
  EXPECT_EQ(emulated::ReadStatistics().collectives, 3);
  EXPECT_EQ(emulated::ReadStatistics().launches, 0);
}

TEST(CommNccl, NarrowSumsAreTakenInFloatWhateverNcclDoes) {
  // 256 + 1 rounds back to 256 in bf16, which is what NCCL's own sum of four ranks would give.
  RunOnDevices(4, [](Rank& r) {
    const BFloat16 mine(r.rank() == 0 ? 256.0f : 1.0f);
    const int32_t two = mine.bits << 16 | mine.bits;
    Numbers data(r.device, Values(500, two));
    r.group->AllReduce(data.data(), 1000, DType::kBF16);
    const int32_t expected = BFloat16(260.0f).bits << 16 | BFloat16(260.0f).bits;
    EXPECT_EQ(data.Read(), Values(500, expected));
  });
}

TEST(CommNccl, StagingIsBoundedAndKept) {
  RunOnDevices(
      2,
      [](Rank& r) {
        const int64_t n = 50001;
        Numbers full(r.device, Values(static_cast<size_t>(2 * n), std::bit_cast<int32_t>(0.5f)));
        Numbers shard(r.device, Values(static_cast<size_t>(n), std::bit_cast<int32_t>(1.0f)));
        for (int i = 0; i < 2; ++i) {
          r.group->ReduceScatter(full.data(), shard.data(), n,
                                 {DType::kF32, DType::kBF16, DType::kF32}, /*add=*/true);
        }
        EXPECT_EQ(shard.Read(), Values(static_cast<size_t>(n), std::bit_cast<int32_t>(3.0f)));
        const MemoryStats stats = r.device.allocator().stats();
        EXPECT_LE(stats[MemoryCategory::kStaging].peak_bytes, 64 << 10);
        EXPECT_GT(stats[MemoryCategory::kStaging].current_bytes, 60 << 10);
        r.group = nullptr;
        EXPECT_EQ(r.device.allocator().stats()[MemoryCategory::kStaging].current_bytes, 0);
      },
      {.staging_bytes = 64 << 10});
}

TEST(CommNccl, PartsHaveCommunicatorsOfTheirOwn) {
  RunOnDevices(3, [](Rank& r) {
    const std::vector<int> members = r.rank() == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
    const std::unique_ptr<ProcessGroup> part = r.group->Split("part", members);
    EXPECT_EQ(part->size(), r.rank() == 1 ? 1 : 2);
    Numbers data(r.device, {1, r.rank()});
    part->AllReduce(data.data(), 2, DType::kI32);
    EXPECT_EQ(data.Read(), r.rank() == 1 ? (Values{1, 1}) : (Values{2, 2}));
  });
}

TEST(CommNccl, AbortEndsWhatIsQueuedAndNamesWhoDidIt) {
  FailOnDevices(2, [](Rank& r) {
    Numbers data(r.device, {1, 2});
    r.group->AllReduce(data.data(), 2, DType::kI32);  // connects
    if (r.rank() == 1) {
      r.group->Abort(absl::UnknownError("no more"));
    } else {
      r.group->AllReduce(data.data(), 2, DType::kI32);
      r.device.backend()->queue().Synchronize();  // would wait for ever
    }
    EXPECT_EQ(AwaitFailure(*r.group).code(), absl::StatusCode::kAborted);
    const Error error = Thrown([&] { r.group->AllReduce(data.data(), 2, DType::kI32); });
    EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
    ExpectHas(error, {"rank 1 aborted: no more"});
    ExpectHas(Thrown([&] { r.group->Barrier(); }), {"rank 1 aborted: no more"});
  });
}

TEST(CommNccl, ALateRankFailsAllWithTheCallThatWaited) {
  FailOnDevices(
      2,
      [](Rank& r) {
        const std::unique_ptr<ProcessGroup> gather = r.group->Fork("gather");
        Numbers data(r.device, {1, 2});
        gather->AllReduce(data.data(), 2, DType::kI32);  // connects
        if (r.rank() == 0) {
          gather->AllReduce(data.data(), 2, DType::kI32, {.module_path = "unit 'b'"});
          r.device.backend()->queue().Synchronize();
        }
        EXPECT_EQ(AwaitFailure(*gather).code(), absl::StatusCode::kDeadlineExceeded);
        const Error error = Thrown([&] { gather->AllReduce(data.data(), 2, DType::kI32); });
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
        ExpectHas(error, {"all_reduce of 8 bytes of i32 (#2) in unit 'b' on 'gather' timed out on "
                          "rank 0",
                          "within 500ms"});
      },
      {.timeout = absl::Milliseconds(500)});
}

TEST(CommNccl, ARankThatNeverConnectsIsLateToo) {
  FailOnDevices(
      2,
      [](Rank& r) {
        Numbers data(r.device, {1, 2});
        const std::unique_ptr<ProcessGroup> gather = r.group->Fork("gather");
        if (r.rank() == 0) {
          const Error error = Thrown([&] { gather->AllReduce(data.data(), 2, DType::kI32); });
          EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
          ExpectHas(error, {"rank 1 of 2 did not call it"});
        }
        EXPECT_EQ(AwaitFailure(*gather).code(), absl::StatusCode::kDeadlineExceeded);
      },
      {}, absl::Milliseconds(500));
}

TEST(CommNccl, ARankThatLeavesFailsTheOthers) {
  FailOnDevices(2, [](Rank& r) {
    Numbers data(r.device, {1, 2});
    r.group->AllReduce(data.data(), 2, DType::kI32);  // connects
    if (r.rank() == 1) {
      r.world.group().Abort(absl::UnknownError("its step failed"));
      return;
    }
    r.group->AllReduce(data.data(), 2, DType::kI32);
    r.device.backend()->queue().Synchronize();
    EXPECT_EQ(AwaitFailure(*r.group).code(), absl::StatusCode::kAborted);
    ExpectHas(Thrown([&] { r.group->AllReduce(data.data(), 2, DType::kI32); }),
              {"rank 1 aborted: its step failed"});
  });
}

TEST(CommNccl, TwoRanksOnOneDeviceAreNamed) {
  emulated::Configure({.devices = 2});
  RunRanks(3, [](World& w) {
    const Device device = Open(w.rank() == 0 ? 1 : w.rank() - 1);
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group =
        ConnectNccl(w.group().Fork("control"), device);
    ASSERT_FALSE(group.ok());
    EXPECT_EQ(group.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(group.status().message().find("ranks 0 and 2 have one device, cuda:1"),
              std::string::npos)
        << group.status();
  });
}

TEST(CommNccl, RanksThatSayTheyAreOnTwoHostsMayShareADevice) {
  emulated::Configure({.devices = 1});
  RunRanks(2, [](World& w) {
    const std::string host = w.rank() == 0 ? "a" : "b";
    emulated::SetHost(host);
    const Device device = Open(0);
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group =
        ConnectNccl(w.group().Fork("control"), device, {.host = host});
    ASSERT_TRUE(group.ok()) << group.status();
    Numbers data(device, {1, w.rank()});
    const std::unique_ptr<DeviceQueue> queue = device.backend()->MakeQueue("test");
    const QueueScope scope(*device.backend(), *queue);
    (*group)->AllReduce(data.data(), 2, DType::kI32);
    EXPECT_EQ(data.Read(), (Values{2, 1}));
    EXPECT_TRUE((*group)->Failure().ok());
    *group = nullptr;
  });
}

}  // namespace
}  // namespace sherd
