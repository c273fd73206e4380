// Every collective, element by element, for 1 to 4 ranks over real Gloo.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/comm/delayed_group.h"
#include "sherd/runtime/comm/recording_group.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/random.h"
#include "tests/support/ranks.h"

namespace sherd {
namespace {

using testing::RankOptions;
using testing::RunRanks;

// Rank r's element i: different for all r and i, and whole numbers small enough that sums of four
// are exact in every dtype.
double Element(int rank, int64_t i, DType dtype) {
  const uint64_t hash = Mix64(static_cast<uint64_t>(rank) << 40 | static_cast<uint64_t>(i));
  return static_cast<double>(hash % (dtype == DType::kBF16  ? 64
                                     : dtype == DType::kF16 ? 512
                                                            : 100000)) -
         30;
}

void Put(char* data, int64_t i, DType dtype, double value) {
  auto put = [&](auto typed) { std::memcpy(data + i * SizeOf(dtype), &typed, sizeof(typed)); };
  switch (dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF64:
      return put(value);
    case DType::kBF16:
      return put(BFloat16(static_cast<float>(value)));
    case DType::kF16:
      return put(Float16(static_cast<float>(value)));
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    case DType::kI64:
      return put(static_cast<int64_t>(value));
  }
}

double Take(const char* data, int64_t i, DType dtype) {
  auto get = [&](auto typed) {
    std::memcpy(&typed, data + i * SizeOf(dtype), sizeof(typed));
    return typed;
  };
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(get(float()));
    case DType::kF64:
      return get(double());
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(get(BFloat16())));
    case DType::kF16:
      return static_cast<double>(static_cast<float>(get(Float16())));
    case DType::kI32:
      return get(int32_t());
    case DType::kI64:
      return static_cast<double>(get(int64_t()));
  }
  return 0;
}

std::vector<char> Filled(int rank, int64_t elems, DType dtype) {
  std::vector<char> data(static_cast<size_t>(elems * SizeOf(dtype)));
  for (int64_t i = 0; i < elems; ++i) Put(data.data(), i, dtype, Element(rank, i, dtype));
  return data;
}

double SumOf(int world, int64_t i, DType dtype) {
  double sum = 0;
  for (int r = 0; r < world; ++r) sum += Element(r, i, dtype);
  return sum;
}

// The index of the first element that is not `expected(i)`, or -1.
template <typename Expected>
int64_t FirstWrong(const char* data, int64_t elems, DType dtype, const Expected& expected) {
  for (int64_t i = 0; i < elems; ++i) {
    if (Take(data, i, dtype) != expected(i)) return i;
  }
  return -1;
}

constexpr DType kAllTypes[] = {DType::kF32, DType::kF64, DType::kBF16,
                               DType::kF16, DType::kI32, DType::kI64};

class CommGroup : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int64_t elems() const { return std::get<1>(GetParam()); }
  RankOptions small_pieces() const { return {.piece_bytes = 64 * 1024}; }
};

// 0 and 1 element, odd sizes, a piece of f32 and its neighbours, several pieces.
INSTANTIATE_TEST_SUITE_P(Sizes, CommGroup,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values<int64_t>(0, 1, 3, 1021, (1 << 14) - 1,
                                                                       1 << 14, (1 << 14) + 1,
                                                                       50001)),
                         [](const auto& test) {
                           return "W" + std::to_string(std::get<0>(test.param)) + "x" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_P(CommGroup, AllGatherPutsEveryShardInItsPlace) {
  RunRanks(
      world(),
      [this](World& w) {
        const int64_t n = elems();
        const std::vector<char> shard = Filled(w.rank(), n, DType::kF32);
        std::vector<char> full(static_cast<size_t>(n * 4 * world()), 'x');
        w.group().AllGather(shard.data(), full.data(), n * 4);
        std::vector<char> in_place(full.size(), 'y');
        char* own = in_place.data() + w.rank() * n * 4;
        if (n > 0) std::memcpy(own, shard.data(), shard.size());
        w.group().AllGather(own, in_place.data(), n * 4);
        for (int r = 0; r < world(); ++r) {
          auto expected = [r](int64_t i) { return Element(r, i, DType::kF32); };
          EXPECT_EQ(FirstWrong(full.data() + r * n * 4, n, DType::kF32, expected), -1);
          EXPECT_EQ(FirstWrong(in_place.data() + r * n * 4, n, DType::kF32, expected), -1);
        }
      },
      small_pieces());
}

TEST_P(CommGroup, ReduceScatterSumsAndAdds) {
  RunRanks(
      world(),
      [this](World& w) {
        for (DType dtype : kAllTypes) {
          const int64_t n = elems();
          const int64_t begin = w.rank() * n;
          const std::vector<char> full = Filled(w.rank(), n * world(), dtype);
          std::vector<char> shard(static_cast<size_t>(n * SizeOf(dtype)), 'x');
          w.group().ReduceScatter(full.data(), shard.data(), n, dtype, /*add=*/false);
          EXPECT_EQ(FirstWrong(shard.data(), n, dtype,
                               [&](int64_t i) { return SumOf(world(), begin + i, dtype); }),
                    -1)
              << NameOf(dtype);
          for (int64_t i = 0; i < n; ++i) Put(shard.data(), i, dtype, static_cast<double>(i % 5));
          w.group().ReduceScatter(full.data(), shard.data(), n, dtype, /*add=*/true);
          EXPECT_EQ(FirstWrong(shard.data(), n, dtype,
                               [&](int64_t i) {
                                 return SumOf(world(), begin + i, dtype) +
                                        static_cast<double>(i % 5);
                               }),
                    -1)
              << NameOf(dtype) << " with add";
          EXPECT_EQ(full, Filled(w.rank(), n * world(), dtype)) << "the input changed";
          std::vector<char> in_place = full;
          w.group().ReduceScatter(in_place.data(), in_place.data() + begin * SizeOf(dtype), n,
                                  dtype,
                                  /*add=*/false);
          EXPECT_EQ(FirstWrong(in_place.data() + begin * SizeOf(dtype), n, dtype,
                               [&](int64_t i) { return SumOf(world(), begin + i, dtype); }),
                    -1)
              << NameOf(dtype) << " in place";
        }
      },
      small_pieces());
}

TEST_P(CommGroup, AllReduceSumsOnEveryRank) {
  RunRanks(
      world(),
      [this](World& w) {
        for (DType dtype : kAllTypes) {
          std::vector<char> data = Filled(w.rank(), elems(), dtype);
          w.group().AllReduce(data.data(), elems(), dtype);
          EXPECT_EQ(FirstWrong(data.data(), elems(), dtype,
                               [&](int64_t i) { return SumOf(world(), i, dtype); }),
                    -1)
              << NameOf(dtype);
        }
      },
      small_pieces());
}

TEST_P(CommGroup, BroadcastCopiesTheRootsBytes) {
  RunRanks(
      world(),
      [this](World& w) {
        for (int root = 0; root < world(); ++root) {
          std::vector<char> data = Filled(w.rank(), elems(), DType::kI32);
          w.group().Broadcast(data.data(), elems() * 4, root);
          EXPECT_EQ(FirstWrong(data.data(), elems(), DType::kI32,
                               [&](int64_t i) { return Element(root, i, DType::kI32); }),
                    -1)
              << "root " << root;
        }
      },
      small_pieces());
}

TEST(CommLarge, ShardsOfSeveralMebibytesArriveWhole) {
  RunRanks(3, [](World& w) {
    const int64_t n = 700001;
    std::vector<int32_t> full(static_cast<size_t>(3 * n));
    for (int64_t i = 0; i < 3 * n; ++i)
      full[static_cast<size_t>(i)] = static_cast<int32_t>(i) * (w.rank() + 1);
    std::vector<int32_t> shard(static_cast<size_t>(n));
    w.group().ReduceScatter(full.data(), shard.data(), n, DType::kI32, false);
    w.group().AllGather(shard.data(), full.data(), n * 4);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 3 * n; ++i)
      wrong += full[static_cast<size_t>(i)] != 6 * static_cast<int32_t>(i);
    EXPECT_EQ(wrong, 0);
    for (int64_t i = 0; i < 3 * n; ++i)
      full[static_cast<size_t>(i)] = static_cast<int32_t>(i) - w.rank();
    w.group().AllReduce(full.data(), 3 * n, DType::kI32);
    for (int64_t i = 0; i < 3 * n; ++i)
      wrong += full[static_cast<size_t>(i)] != 3 * static_cast<int32_t>(i) - 3;
    EXPECT_EQ(wrong, 0);
  });
}

TEST(CommOrder, SumsAreTakenInRankOrder) {
  // ((1e8 + 1) - 1e8) is 0 in f32; any other order of these three gives 1.
  RunRanks(3, [](World& w) {
    const float mine[] = {1e8f, 1.0f, -1e8f};
    for (int64_t n : {int64_t{8}, int64_t{500000}}) {
      std::vector<float> full(static_cast<size_t>(3 * n), mine[w.rank()]);
      std::vector<float> shard(static_cast<size_t>(n));
      w.group().ReduceScatter(full.data(), shard.data(), n, DType::kF32, false);
      EXPECT_EQ(shard, std::vector<float>(static_cast<size_t>(n), 0.0f));
      w.group().AllReduce(full.data(), 3 * n, DType::kF32);
      EXPECT_EQ(full, std::vector<float>(static_cast<size_t>(3 * n), 0.0f));
      shard.assign(static_cast<size_t>(n), 1.0f);
      std::vector<float> again(static_cast<size_t>(3 * n), mine[w.rank()]);
      w.group().ReduceScatter(again.data(), shard.data(), n, DType::kF32, /*add=*/true);
      EXPECT_EQ(shard, std::vector<float>(static_cast<size_t>(n), 1.0f)) << "shard + (r0+r1+r2)";
    }
  });
}

TEST(CommOrder, BFloat16IsAddedUpInFloatAndRoundedOnce) {
  // 256 + 1 rounds back to 256 in bf16, so four ranks would give 256; in f32 the sum is 259, and
  // the nearest bf16 is 260.
  RunRanks(4, [](World& w) {
    std::vector<BFloat16> data(40000, BFloat16(w.rank() == 0 ? 256.0f : 1.0f));
    std::vector<BFloat16> few(data.begin(), data.begin() + 5);
    w.group().AllReduce(data.data(), 40000, DType::kBF16);
    w.group().AllReduce(few.data(), 5, DType::kBF16);
    EXPECT_EQ(static_cast<float>(data[39999]), 260.0f);
    EXPECT_EQ(static_cast<float>(few[4]), 260.0f);
  });
}

TEST(CommOrder, Float16IsAddedUpInFloatAndRoundedOnce) {
  // 2048 + 1 rounds back to 2048 in f16, so four ranks would give 2048; in f32 the sum is 2051, and
  // the nearest even f16 is 2052.
  RunRanks(4, [](World& w) {
    std::vector<Float16> data(40000, Float16(w.rank() == 0 ? 2048.0f : 1.0f));
    w.group().AllReduce(data.data(), 40000, DType::kF16);
    EXPECT_EQ(static_cast<float>(data[39999]), 2052.0f);
  });
}

TEST(CommFork, ForksRunAtTheSameTimeAndKeepTheirDataApart) {
  RunRanks(3, [](World& w) {
    std::unique_ptr<ProcessGroup> gathers = w.group().Fork("gather");
    std::unique_ptr<ProcessGroup> reductions = w.group().Fork("reduce");
    auto gather = [&] {
      for (int round = 0; round < 30; ++round) {
        const int64_t n = 1 + round * 4099;
        std::vector<int32_t> shard(static_cast<size_t>(n), w.rank() * 1000 + round);
        std::vector<int32_t> full(static_cast<size_t>(3 * n));
        gathers->AllGather(shard.data(), full.data(), n * 4);
        for (int r = 0; r < 3; ++r) {
          ASSERT_EQ(full[static_cast<size_t>(r * n)], r * 1000 + round);
          ASSERT_EQ(full[static_cast<size_t>(r * n + n - 1)], r * 1000 + round);
        }
      }
    };
    auto reduce = [&] {
      for (int round = 0; round < 30; ++round) {
        const int64_t n = 1 + round * 5003;
        std::vector<int32_t> full(static_cast<size_t>(3 * n), w.rank() + round);
        std::vector<int32_t> shard(static_cast<size_t>(n));
        reductions->ReduceScatter(full.data(), shard.data(), n, DType::kI32, false);
        ASSERT_EQ(shard.front(), 3 + 3 * round);
        ASSERT_EQ(shard.back(), 3 + 3 * round);
      }
    };
    std::thread other(gather);
    reduce();
    other.join();
  });
}

TEST(CommFork, SecondCallOnOneGroupIsRefused) {
  std::atomic<bool> refused{false};
  RunRanks(2, [&](World& w) {
    if (w.rank() == 1) {
      while (!refused) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return w.group().Barrier();
    }
    std::thread waiting([&] { w.group().Barrier(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    try {
      w.group().Barrier();
      ADD_FAILURE() << "an overlapping call was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(std::string(error.what()).find("Fork"), std::string::npos) << error.what();
    }
    refused = true;
    waiting.join();
  });
}

TEST(CommArguments, BadOnesAreRefusedBeforeAnythingIsSent) {
  RunRanks(2, [](World& w) {
    std::vector<float> full(8);
    std::vector<float> shard(4);
    ProcessGroup& group = w.group();
    auto refused = [](auto call) {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == absl::StatusCode::kInvalidArgument;
      }
      return false;
    };
    EXPECT_TRUE(refused([&] { group.AllGather(shard.data(), full.data(), -1); }));
    EXPECT_TRUE(refused([&] { group.AllGather(nullptr, full.data(), 4); }));
    EXPECT_TRUE(refused([&] { group.AllGather(full.data() + 1, full.data(), 16); }));
    EXPECT_TRUE(
        refused([&] { group.ReduceScatter(full.data(), full.data() + 2, 4, DType::kF32, false); }));
    EXPECT_TRUE(refused([&] {
      group.ReduceScatter(full.data(), full.data() + 4 * w.rank(), 4, DType::kF32, true);
    }));
    EXPECT_TRUE(refused([&] { group.AllReduce(shard.data(), INT64_MAX / 2, DType::kF32); }));
    EXPECT_TRUE(refused([&] { group.Broadcast(shard.data(), 4, 2); }));
    group.AllGather(shard.data(), full.data(), 16);  // the group is whole
  });
}

TEST(CommRecording, LogHoldsEveryCallOfAGroupAndItsForks) {
  std::vector<std::shared_ptr<CollectiveLog>> logs(2);
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    auto& log = logs[static_cast<size_t>(group->rank())];
    log = std::make_shared<CollectiveLog>();
    return MakeRecordingGroup(std::move(group), log);
  };
  RunRanks(
      2,
      [](World& w) {
        std::vector<float> full(8, 1.0f);
        std::vector<float> shard(4, 0.0f);
        w.group().ReduceScatter(full.data(), shard.data(), 4, DType::kF32, false,
                                {.module_path = "blocks.1"});
        std::unique_ptr<ProcessGroup> fork = w.group().Fork("gather");
        fork->AllGather(shard.data(), full.data(), 16);
        EXPECT_EQ(full[7], 2.0f);
      },
      options);
  for (const auto& log : logs) {
    const std::vector<CollectiveRecord> records = log->records();
    ASSERT_EQ(records.size(), 3u);  // the last one is the barrier at the end
    EXPECT_EQ(records[0].op, CollectiveOp::kReduceScatter);
    EXPECT_EQ(records[0].bytes, 16);
    EXPECT_EQ(records[0].module_path, "blocks.1");
    EXPECT_EQ(records[1].op, CollectiveOp::kAllGather);
    EXPECT_EQ(records[1].group, "gather");
    EXPECT_EQ(records[1].sequence, 1u);
    EXPECT_EQ(log->count(CollectiveOp::kBarrier), 1);
    EXPECT_EQ(log->bytes(CollectiveOp::kAllGather), 16);
  }
}

TEST(CommDelayed, ResultsAreTheSame) {
  RankOptions options;
  options.wrap_group = [](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return MakeDelayedGroup(std::move(group), {.seed = 7, .max_delay = absl::Milliseconds(5)});
  };
  const auto start = std::chrono::steady_clock::now();
  RunRanks(
      3,
      [](World& w) {
        for (int i = 0; i < 20; ++i) {
          int64_t value = w.rank() + i;
          w.group().AllReduce(&value, 1, DType::kI64);
          EXPECT_EQ(value, 3 + 3 * i);
        }
      },
      options);
  // 42 delays of 2.5 ms on average: it does delay.
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST(CommStaging, ReductionsStayWithinTheirStagingAndGiveItBack) {
  RunRanks(3, [](World& w) {
    const int64_t n = 3 << 20;  // 12 MiB a shard
    std::vector<float> full(static_cast<size_t>(3 * n), 1.0f);
    std::vector<float> shard(static_cast<size_t>(n));
    w.group().ReduceScatter(full.data(), shard.data(), n, DType::kF32, false);
    const MemoryStats stats = w.device().allocator().stats();
    EXPECT_EQ(stats[MemoryCategory::kStaging].current_bytes, 0);
    // Two pieces of 1 MiB for each of two peers.
    EXPECT_EQ(stats[MemoryCategory::kStaging].peak_bytes, 4 << 20);
  });
}

}  // namespace
}  // namespace sherd
