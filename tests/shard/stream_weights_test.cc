#include "sherd/shard/stream_weights.h"

#include <gtest/gtest.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "sherd/runtime/comm/recording_group.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

std::vector<std::string> NamesOf(const Module& model) {
  std::vector<std::string> names;
  for (const Parameter& p : model.parameters()) names.push_back(p.name());
  return names;
}

// The values of a model that is not sharded.
Whole PlainValues(int blocks) {
  const Device device = Device::Cpu();
  ShardModel plain(blocks);
  Initialize(plain, device, 7);
  return ValuesOf(plain, nullptr);
}

// What the sink got, in the order of its calls.
struct Received {
  std::vector<std::string> names;
  Whole values;

  WeightSink sink() {
    return [this](const Parameter& p, const Tensor& value) {
      EXPECT_TRUE(value.shape() == p.shape());
      EXPECT_TRUE(value.is_contiguous());
      names.push_back(p.name());
      values[p.name()] = DoublesOf(value);
      return absl::OkStatus();
    };
  }
};

TEST(StreamWeights, TheWholeValuesComeInOrderWhateverTheRanksAndTheBuffer) {
  const Whole want = PlainValues(3);
  for (int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, [&, ranks](World& world) {
      ShardModel model;
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 7);
      for (bool to_all : {false, true}) {
        for (int64_t buffer_bytes : {int64_t{1}, int64_t{24}, int64_t{4} << 20}) {
          if (buffer_bytes == 1 && ranks != 2) continue;  // an element at a time takes long
          Received got;
          PoisonFreeMemory(world.device());
          ASSERT_TRUE(StreamWeights(model, world.group(), got.sink(),
                                    {.to_all_ranks = to_all, .buffer_bytes = buffer_bytes})
                          .ok());
          if (world.rank() > 0 && !to_all) {
            EXPECT_TRUE(got.names.empty());
            continue;
          }
          EXPECT_EQ(got.names, NamesOf(model));
          EXPECT_EQ(got.values, want);
        }
      }
    });
  }
}

TEST(StreamWeights, EveryStageGivesThem) {
  const Stage stages[] = {kDataParallel, kZero1,           kZero2,
                          kZero3,        kHybridOptimizer, kZero3Everywhere};
  const Whole want = PlainValues(2);
  for (const Stage& stage : stages) {
    RunRanks(4, [&](World& world) {
      for (int shard_size : {2, 4}) {
        ShardModel model(2);
        FullyShardOptions options = Sums();
        options.stage = stage;
        ShardAll(model, world.MakeMesh(shard_size), options);
        Initialize(model, world.device(), 7);
        Received got;
        ASSERT_TRUE(StreamWeights(model, world.group(), got.sink(), {.to_all_ranks = true}).ok());
        EXPECT_EQ(got.values, want);
      }
    });
  }
}

TEST(StreamWeights, ModelsWithoutUnitsSendNothing) {
  const Whole want = PlainValues(3);
  const auto log = std::make_shared<CollectiveLog>();
  const RankOptions options = {
      .wrap_group = [&](auto group) { return MakeRecordingGroup(group, log); }};
  RunRanks(
      2,
      [&](World& world) {
        ShardModel model;
        Initialize(model, world.device(), 7);
        Received got;
        ASSERT_TRUE(StreamWeights(model, world.group(), got.sink()).ok());
        EXPECT_EQ(got.values, world.rank() == 0 ? want : Whole());
      },
      options);
  EXPECT_EQ(log->count(CollectiveOp::kBroadcast), 0);
}

// Two ranks, half a model each: rank 1 sends its half once.
TEST(StreamWeights, EachElementTravelsOnce) {
  const auto log = std::make_shared<CollectiveLog>();
  const RankOptions options = {
      .wrap_group = [&](auto group) { return MakeRecordingGroup(group, log); }};
  int64_t of_rank_1 = 0;
  RunRanks(
      2,
      [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums());
        Initialize(model, world.device(), 7);
        for (const Parameter& p : model.parameters()) {
          if (world.rank() == 1) of_rank_1 += p.local().bytes();
        }
        Received got;
        ASSERT_TRUE(StreamWeights(model, world.group(), got.sink()).ok());
      },
      options);
  EXPECT_EQ(log->bytes(CollectiveOp::kBroadcast), 2 * of_rank_1);  // both ranks' records
}

TEST(StreamWeights, NoRankHoldsMoreThanAParameterOrABuffer) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 7);
    int64_t largest = 0;
    for (const Parameter& p : model.parameters()) {
      largest = std::max(largest, p.numel() * SizeOf(p.dtype()));
    }
    const auto staging = [&] {
      return world.device().allocator().stats()[MemoryCategory::kStaging];
    };
    world.device().allocator().ResetPeaks();
    const int64_t before = world.device().allocator().stats().total.current_bytes;
    ASSERT_TRUE(StreamWeights(model, world.group(),
                              [](const Parameter&, const Tensor&) { return absl::OkStatus(); },
                              {.buffer_bytes = 16})
                    .ok());
    EXPECT_EQ(world.device().allocator().stats().total.current_bytes, before);
    // Memory is given out in blocks of 64 bytes.
    const int64_t most = world.rank() == 0 ? (largest + 63) / 64 * 64 : 64;
    EXPECT_LE(staging().peak_bytes, most);
    EXPECT_GT(staging().peak_bytes, 0);
  });
}

TEST(StreamWeights, WhatTheSinkSaysAllRanksSay) {
  for (bool throws : {false, true}) {
    RunRanks(3, [&](World& world) {
      ShardModel model;
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 7);
      const std::string second = NamesOf(model)[1];
      int calls = 0;
      const WeightSink sink = [&](const Parameter& p, const Tensor&) -> absl::Status {
        ++calls;
        if (p.name() != second) return absl::OkStatus();
        if (throws) throw std::runtime_error("the disk is full");
        return absl::ResourceExhaustedError("the disk is full");
      };
      const absl::Status status = StreamWeights(model, world.group(), sink);
      EXPECT_TRUE(
          Contains(std::string(status.message()), "parameter '" + second + "': the disk is full"));
      EXPECT_EQ(status.code(),
                throws ? absl::StatusCode::kInternal : absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(calls, world.rank() == 0 ? 2 : 0);
      // The group goes on.
      Received got;
      EXPECT_TRUE(StreamWeights(model, world.group(), got.sink()).ok());
    });
  }
}

TEST(StreamWeights, ParametersWithoutValuesAndOtherModelsAreRefused) {
  RunRanks(2, [](World& world) {
    ShardModel empty;
    ShardAll(empty, world.mesh(), Sums());
    Received got;
    absl::Status status = StreamWeights(empty, world.group(), got.sink());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Contains(std::string(status.message()), NamesOf(empty)[0]));
    ShardModel other(2 + world.rank());
    Initialize(other, world.device(), 7);
    status = StreamWeights(other, world.group(), got.sink());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Contains(std::string(status.message()), "rank 1 has"));
    EXPECT_TRUE(got.names.empty());
  });
}

}  // namespace
}  // namespace sherd::testing
