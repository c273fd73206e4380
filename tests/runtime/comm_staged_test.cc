// What comm_group_test and comm_wire_test, which run over staged groups too, do not see: where
// buffers lie, what the host waits for, and what staging costs.
#include "sherd/runtime/comm/staged_group.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/runtime/comm_support.h"
#include "tests/runtime/device_numbers.h"
#include "tests/runtime/fake_device.h"
#include "tests/support/ranks.h"

namespace sherd {
namespace {

using testing::CountsOf;
using testing::ExpectHas;
using testing::MakeFakeDevice;
using testing::Numbers;
using testing::RunFailing;
using testing::RunRanks;
using testing::Thrown;
using testing::Values;

TEST(CommStaged, EitherBufferMayBeTheHosts) {
  RunRanks(2, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::shared_ptr<ProcessGroup> shared = w.group().Fork("staged");
    const std::unique_ptr<ProcessGroup> group = MakeStagedGroup(shared, device);
    const int32_t r = w.rank();
    Values host_shard = {10 * r, 10 * r + 1};
    Values host_full(4);
    Numbers shard(device, host_shard);
    Numbers full(device, {9, 9, 9, 9});

    group->AllGather(shard.data(), host_full.data(), 8);
    EXPECT_EQ(host_full, (Values{0, 1, 10, 11}));
    group->AllGather(host_shard.data(), full.data(), 8);
    EXPECT_EQ(full.Read(), (Values{0, 1, 10, 11}));
    group->ReduceScatter(full.data(), host_shard.data(), 2, DType::kI32, /*add=*/true);
    EXPECT_EQ(host_shard, r == 0 ? (Values{0, 3}) : (Values{30, 33}));
    group->ReduceScatter(host_full.data(), shard.data(), 2, DType::kI32, /*add=*/true);
    EXPECT_EQ(shard.Read(), r == 0 ? (Values{0, 3}) : (Values{30, 33}));
  });
}

TEST(CommStaged, RanksMayDifferInWhereABufferLies) {
  RunRanks(2, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group = MakeStagedGroup(w.group().Fork("staged"), device);
    Values host = {w.rank(), 5};
    Numbers numbers(device, host);
    group->AllReduce(w.rank() == 0 ? host.data() : numbers.data(), 2, DType::kI32);
    EXPECT_EQ(w.rank() == 0 ? host : numbers.Read(), (Values{1, 10}));
  });
}

TEST(CommStaged, BuffersOfTheHostGoStraightThrough) {
  RunRanks(2, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group = MakeStagedGroup(w.group().Fork("staged"), device);
    Values data = {w.rank(), 1};
    group->AllReduce(data.data(), 2, DType::kI32);
    group->Broadcast(data.data(), 8, 1);
    group->Barrier();
    EXPECT_EQ(data, (Values{1, 2}));
    EXPECT_EQ(CountsOf(device).host_bytes, 0);
    EXPECT_EQ(CountsOf(device).synchronizations, 0);
  });
}

TEST(CommStaged, TheHostWaitsOnlyForWhatItSends) {
  RunRanks(2, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group = MakeStagedGroup(w.group().Fork("staged"), device);
    Numbers data(device, {w.rank(), 7 * w.rank()});
    const int64_t before = CountsOf(device).synchronizations;
    group->Broadcast(data.data(), 8, 1);
    EXPECT_EQ(CountsOf(device).synchronizations - before, w.rank() == 1 ? 1 : 0);
    EXPECT_EQ(data.Read(), (Values{1, 7}));
  });
}

TEST(CommStaged, ResultsReachTheDeviceBeforeTheirStagingIsUsedAgain) {
  RunRanks(2, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group = MakeStagedGroup(w.group().Fork("staged"), device);
    Numbers first(device, {w.rank(), 1});
    Numbers second(device, {w.rank(), 2});
    group->Broadcast(first.data(), 8, 1);
    group->Broadcast(second.data(), 8, 1);
    EXPECT_EQ(first.Read(), (Values{1, 1}));
    EXPECT_EQ(second.Read(), (Values{1, 2}));
  });
}

TEST(CommStaged, StagingIsBoundedHoweverLargeTheBuffers) {
  RunRanks(3, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group =
        MakeStagedGroup(w.group().Fork("staged"), device, {.staging_bytes = 256 << 10});
    const int64_t n = 100003;
    Values values(static_cast<size_t>(3 * n));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int32_t>(i) * (w.rank() + 1);
    }
    Numbers full(device, values);
    Numbers shard(device, Values(static_cast<size_t>(n), 1));
    group->ReduceScatter(full.data(), shard.data(), n, DType::kI32, /*add=*/true);
    group->AllGather(shard.data(), full.data(), n * 4);
    const Values sums = full.Read();
    int64_t wrong = 0;
    for (size_t i = 0; i < sums.size(); ++i) wrong += sums[i] != 6 * static_cast<int32_t>(i) + 1;
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(CountsOf(device).host_bytes, 200 << 10);
    EXPECT_LE(CountsOf(device).host_bytes, 264 << 10);
  });
}

TEST(CommStaged, OtherSizesInPiecesAreAnErrorThatSaysSo) {
  RunFailing(2, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group =
        MakeStagedGroup(w.group().Fork("staged"), device, {.staging_bytes = 64 << 10});
    // The first pieces are of one size.
    Numbers data(device, Values(static_cast<size_t>(w.rank() == 0 ? 20000 : 40000)));
    const Error error = Thrown([&] {
      group->AllReduce(data.data(), w.rank() == 0 ? 20000 : 40000, DType::kI32,
                       {.module_path = "unit 'b'"});
    });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(error, {"unit 'b' piece 1 of 3", "unit 'b' piece 1 of 5"});
  });
}

TEST(CommStaged, PartsAndForksAreStagedToo) {
  RunRanks(3, [](World& w) {
    const Device device = MakeFakeDevice();
    const std::unique_ptr<ProcessGroup> group = MakeStagedGroup(w.group().Fork("staged"), device);
    EXPECT_EQ(group->description(), "gloo 'staged' rank " + std::to_string(w.rank()) + " of 3");
    const std::vector<int> members = w.rank() == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
    const std::unique_ptr<ProcessGroup> part = group->Split("part", members)->Fork("more");
    Numbers data(device, {1, w.rank()});
    part->AllReduce(data.data(), 2, DType::kI32);
    EXPECT_EQ(data.Read(), w.rank() == 1 ? (Values{1, 1}) : (Values{2, 2}));
  });
}

TEST(CommStaged, AbortEndsAWaitAndNothingIsUsedAfterwards) {
  RunFailing(2, [](World& w) {
    const Device device = MakeFakeDevice();
    std::unique_ptr<ProcessGroup> group =
        MakeStagedGroup(w.group().Fork("staged"), device, {.staging_bytes = 64 << 10});
    Numbers data(device, Values(40000, 3));
    if (w.rank() == 1) return group->Abort(absl::UnknownError("no more"));
    const Error error = Thrown([&] { group->AllReduce(data.data(), 40000, DType::kI32); });
    EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
    ExpectHas(error, {"rank 1 aborted: no more"});
    group = nullptr;  // with a copy to its memory still queued
    EXPECT_EQ(data.Read(), Values(40000, 3));
    EXPECT_EQ(CountsOf(device).stale_copies, 0);
  });
}

}  // namespace
}  // namespace sherd
