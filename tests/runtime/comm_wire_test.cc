// Reductions whose input, wire and result have dtypes of their own, against plain loops that round
// in a way of their own, to the bit, for 1 to 4 ranks over real Gloo.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
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

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// `x` as the nearest value with `digits` binary digits, ties to even, from exponent `least` on.
double Nearest(double x, int digits, int least, double largest) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), least);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  const double rounded = std::nearbyint(x / unit) * unit;
  return std::abs(rounded) > largest ? std::copysign(INFINITY, x) : rounded;
}

double Rounded(double x, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return Nearest(x, 8, -126, 3.3895313892515355e38);
    case DType::kF16:
      return Nearest(x, 11, -14, 65504);
    case DType::kF64:
      return x;
    default:
      return static_cast<double>(static_cast<float>(x));
  }
}

double Take(const char* data, int64_t i, DType dtype) {
  auto get = [&](auto typed) {
    std::memcpy(&typed, data + i * SizeOf(dtype), sizeof(typed));
    return typed;
  };
  switch (dtype) {
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(get(BFloat16())));
    case DType::kF16:
      return static_cast<double>(static_cast<float>(get(Float16())));
    case DType::kF64:
      return get(double());
    default:
      return static_cast<double>(get(float()));
  }
}

// REQUIRES: `value` is one of the dtype's.
void Put(char* data, int64_t i, DType dtype, double value) {
  auto put = [&](auto typed) { std::memcpy(data + i * SizeOf(dtype), &typed, sizeof(typed)); };
  switch (dtype) {
    case DType::kBF16:
      return put(BFloat16(static_cast<float>(value)));
    case DType::kF16:
      return put(Float16(static_cast<float>(value)));
    case DType::kF64:
      return put(value);
    default:
      return put(static_cast<float>(value));
  }
}

// Rank r's element i: of sizes from 2^-6 to 2^6, with all digits of the dtype in use.
double Element(int rank, int64_t i, DType dtype) {
  const uint64_t hash = Mix64(static_cast<uint64_t>(rank) << 40 | static_cast<uint64_t>(i));
  const double mantissa = static_cast<double>(hash >> 12) / std::ldexp(1.0, 52) + 1;
  const double value = std::ldexp(mantissa, static_cast<int>(hash % 13) - 6);
  return Rounded((hash & 2048) != 0 ? -value : value, dtype);
}

std::vector<char> Filled(int rank, int64_t elems, DType dtype) {
  std::vector<char> data(static_cast<size_t>(elems * SizeOf(dtype)));
  for (int64_t i = 0; i < elems; ++i) Put(data.data(), i, dtype, Element(rank, i, dtype));
  return data;
}

// The sum of what ranks put in as `full` and see of each other as `wire`.
double SumOf(int world, int64_t i, DType full, DType wire) {
  double sum = Rounded(Element(0, i, full), wire);
  for (int r = 1; r < world; ++r) {
    const double next = Rounded(Element(r, i, full), wire);
    sum = wire == DType::kF64
              ? sum + next
              : static_cast<double>(static_cast<float>(sum) + static_cast<float>(next));
  }
  return sum;
}

std::string Text(const WireTypes& types) {
  return std::string(NameOf(types.full)) + " " + std::string(NameOf(types.wire)) + " " +
         std::string(NameOf(types.shard));
}

// Calls `body` with every combination of float dtypes.
template <typename Body>
void ForAllTypes(const Body& body) {
  for (DType full : kFloats) {
    for (DType wire : kFloats) {
      for (DType shard : kFloats) body(WireTypes{full, wire, shard});
    }
  }
}

class CommWire : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int64_t elems() const { return std::get<1>(GetParam()); }
};

// Nothing, one element, an odd number, and more than two pieces of whatever dtype.
INSTANTIATE_TEST_SUITE_P(Sizes, CommWire,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values<int64_t>(0, 1, 1021, 70001)),
                         [](const auto& test) {
                           return "W" + std::to_string(std::get<0>(test.param)) + "x" +
                                  std::to_string(std::get<1>(test.param));
                         });

// Of many elements only the types that differ in how far apart elements are.
bool LeftOut(int64_t elems, const WireTypes& types) {
  if (elems < 2000) return false;
  const int sizes =
      static_cast<int>(SizeOf(types.full) * 100 + SizeOf(types.wire) * 10 + SizeOf(types.shard));
  return types.full == DType::kF16 || types.wire == DType::kF16 || types.shard == DType::kF16 ||
         (sizes != 424 && sizes != 824 && sizes != 248 && sizes != 242 && sizes != 444);
}

TEST_P(CommWire, ReduceScatterRoundsEveryContributionAndTheSumOnce) {
  RunRanks(
      world(),
      [this](World& w) {
        const int64_t n = elems();
        ForAllTypes([&](const WireTypes& t) {
          if (LeftOut(n, t)) return;
          const std::vector<char> full = Filled(w.rank(), n * world(), t.full);
          std::vector<char> shard(static_cast<size_t>(n * SizeOf(t.shard)), 'x');
          w.group().ReduceScatter(full.data(), shard.data(), n, t, /*add=*/false);
          int64_t wrong = 0;
          std::vector<double> sums(static_cast<size_t>(n));
          for (int64_t i = 0; i < n; ++i) {
            const double sum = SumOf(world(), w.rank() * n + i, t.full, t.wire);
            sums[static_cast<size_t>(i)] = sum;
            wrong += Take(shard.data(), i, t.shard) != Rounded(sum, t.shard) ? 1 : 0;
          }
          EXPECT_EQ(wrong, 0) << Text(t);

          for (int64_t i = 0; i < n; ++i) Put(shard.data(), i, t.shard, Element(9, i, t.shard));
          w.group().ReduceScatter(full.data(), shard.data(), n, t, /*add=*/true);
          const bool wide = t.wire == DType::kF64 || t.shard == DType::kF64;
          for (int64_t i = 0; i < n; ++i) {
            const double there = Element(9, i, t.shard);
            const double sum = sums[static_cast<size_t>(i)];
            const double total =
                wide ? there + sum
                     : static_cast<double>(static_cast<float>(there) + static_cast<float>(sum));
            wrong += Take(shard.data(), i, t.shard) != Rounded(total, t.shard) ? 1 : 0;
          }
          EXPECT_EQ(wrong, 0) << Text(t) << " with add";
          EXPECT_TRUE(full == Filled(w.rank(), n * world(), t.full)) << "the input changed";

          if (t.full != t.shard) return;
          std::vector<char> in_place = full;
          char* own = in_place.data() + w.rank() * n * SizeOf(t.full);
          w.group().ReduceScatter(in_place.data(), own, n, t, /*add=*/false);
          for (int64_t i = 0; i < n; ++i) {
            wrong += Take(own, i, t.full) != Rounded(sums[static_cast<size_t>(i)], t.full) ? 1 : 0;
          }
          EXPECT_EQ(wrong, 0) << Text(t) << " in place";
        });
      },
      {.piece_bytes = 64 * 1024});
}

TEST_P(CommWire, AllReduceGivesEveryRankTheSameRoundedSum) {
  RunRanks(world(),
           [this](World& w) {
             const int64_t n = elems();
             for (DType dtype : kFloats) {
               for (DType wire : kFloats) {
                 std::vector<char> data = Filled(w.rank(), n, dtype);
                 w.group().AllReduce(data.data(), n, dtype, wire);
                 int64_t wrong = 0;
                 for (int64_t i = 0; i < n; ++i) {
                   const double sum = Rounded(SumOf(world(), i, dtype, wire), dtype);
                   const double expected = Rounded(Rounded(sum, wire), dtype);
                   wrong += Take(data.data(), i, dtype) != expected ? 1 : 0;
                 }
                 EXPECT_EQ(wrong, 0) << NameOf(dtype) << " by " << NameOf(wire);
               }
             }
           },
           {.piece_bytes = 64 * 1024});
}

TEST(CommWireBits, DoublesAreRoundedOnceNotTwice) {
  // 1 + 2^-8 + 2^-40 is nearer to 1 + 2^-7 in bf16; by way of f32 it is a tie, and becomes 1.
  // 1 + 2^-11 + 2^-40 likewise in f16. The last two fall on the other side of the tie.
  RunRanks(2, [](World& w) {
    const double tiny = std::ldexp(1.0, -40);
    auto check = [&](DType dtype, double step) {
      double full[8];
      const double inputs[] = {1 + step / 2 + tiny, -1 - step / 2 - tiny, 1 + step * 1.5 - tiny, 0};
      for (int i = 0; i < 8; ++i) full[i] = w.rank() == 0 ? inputs[i % 4] : 0;
      const double expected[] = {1 + step, -1 - step, 1 + step, 0};
      for (const WireTypes& types : {WireTypes{DType::kF64, dtype, DType::kF64},
                                     WireTypes{DType::kF64, DType::kF64, dtype}}) {
        char shard[4 * 8] = {};
        w.group().ReduceScatter(full, shard, 4, types, false);
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(Take(shard, i, types.shard), expected[i]) << Text(types) << " " << i;
        }
      }
    };
    check(DType::kBF16, std::ldexp(1.0, -7));
    check(DType::kF16, std::ldexp(1.0, -10));
  });
}

TEST(CommWireBits, LargeValuesOverflowInTheWireOnEveryRankAlike) {
  // 70000 is beyond f16, 65504 + 65504 is not beyond the f32 in which it is summed.
  for (int64_t n : {int64_t{4}, int64_t{90000}}) {
    RunRanks(2, [n](World& w) {
      std::vector<float> data(static_cast<size_t>(n), 65504.0f);
      w.group().AllReduce(data.data(), n, DType::kF32, DType::kF16);
      EXPECT_EQ(data.front(), INFINITY);  // the sum travels, too
      std::vector<float> full(static_cast<size_t>(2 * n), 65504.0f);
      std::vector<float> shard(static_cast<size_t>(n));
      w.group().ReduceScatter(full.data(), shard.data(), n, {DType::kF32, DType::kF16, DType::kF32},
                              false);
      EXPECT_EQ(shard.back(), 131008.0f);
      full.assign(full.size(), w.rank() == 0 ? 70000.0f : NAN);
      w.group().ReduceScatter(full.data(), shard.data(), n, {DType::kF32, DType::kF16, DType::kF32},
                              false);
      EXPECT_TRUE(std::isnan(shard.back()));
      // bf16's 65536 is no f16: all ranks must still agree, the one that made the sum too.
      std::vector<BFloat16> mixed(static_cast<size_t>(n), BFloat16(32752.0f));
      w.group().AllReduce(mixed.data(), n, DType::kBF16, DType::kF16);
      EXPECT_EQ(static_cast<float>(mixed.front()), INFINITY);
      EXPECT_EQ(static_cast<float>(mixed.back()), INFINITY);
    });
  }
}

TEST(CommWireBits, EqualTypesAreThePlainReduction) {
  RunRanks(3, [](World& w) {
    const int64_t n = 30011;
    for (DType dtype : kFloats) {
      const std::vector<char> full = Filled(w.rank(), 3 * n, dtype);
      std::vector<char> plain(static_cast<size_t>(n * SizeOf(dtype)));
      std::vector<char> wired(plain.size());
      w.group().ReduceScatter(full.data(), plain.data(), n, dtype, false);
      w.group().ReduceScatter(full.data(), wired.data(), n, {dtype, dtype, dtype}, false);
      EXPECT_TRUE(plain == wired) << NameOf(dtype);
      std::vector<char> a = full;
      std::vector<char> b = full;
      w.group().AllReduce(a.data(), 3 * n, dtype);
      w.group().AllReduce(b.data(), 3 * n, dtype, dtype);
      EXPECT_TRUE(a == b) << NameOf(dtype);
    }
    int32_t whole[3] = {1, 2, 3};
    int32_t sum = 0;
    w.group().ReduceScatter(whole, &sum, 1, {DType::kI32, DType::kI32, DType::kI32}, false);
    EXPECT_EQ(sum, 3 * (w.rank() + 1));
  });
}

TEST(CommWireArguments, WhatCannotBeCastIsRefused) {
  RunRanks(2, [](World& w) {
    double full[8] = {};
    double shard[4] = {};
    auto refused = [&](auto call) {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == absl::StatusCode::kInvalidArgument;
      }
      return false;
    };
    for (const WireTypes& types : {WireTypes{DType::kI32, DType::kF32, DType::kF32},
                                   WireTypes{DType::kF32, DType::kI64, DType::kF32},
                                   WireTypes{DType::kF32, DType::kF32, DType::kI32}}) {
      EXPECT_TRUE(refused([&] { w.group().ReduceScatter(full, shard, 4, types, false); }))
          << Text(types);
    }
    EXPECT_TRUE(refused([&] { w.group().AllReduce(full, 4, DType::kF32, DType::kI32); }));
    // Its own piece, but of another dtype: the sum would be written over what is still read.
    const WireTypes narrow{DType::kF32, DType::kBF16, DType::kBF16};
    EXPECT_TRUE(refused([&] {
      w.group().ReduceScatter(full, reinterpret_cast<float*>(full) + 4 * w.rank(), 4, narrow,
                              false);
    }));
    EXPECT_TRUE(refused([&] {
      w.group().ReduceScatter(full, shard, INT64_MAX / 16,
                              {DType::kBF16, DType::kBF16, DType::kF64}, false);
    }));
    w.group().Barrier();
  });
}

TEST(CommWireMismatch, TypesOfBothRanksAreNamed) {
  std::string text[2];
  try {
    RunRanks(2, [&](World& w) {
      float data[8] = {};
      try {
        w.group().AllReduce(data, 8, w.rank() == 0 ? DType::kF32 : DType::kBF16, DType::kBF16);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
        text[w.rank()] = error.what();
      }
    });
  } catch (const Error&) {
  }
  for (const std::string& t : text) {
    EXPECT_NE(t.find("rank 0 called all_reduce of 16 bytes of bf16 for f32 to f32 (#1), rank 1 "
                     "called all_reduce of 16 bytes of bf16 (#1)"),
              std::string::npos)
        << t;
  }
}

TEST(CommWireCost, LogsCountWhatTravelsAndDecoratorsChangeNothing) {
  std::vector<std::shared_ptr<CollectiveLog>> logs(2);
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    auto& log = logs[static_cast<size_t>(group->rank())];
    log = std::make_shared<CollectiveLog>();
    return MakeRecordingGroup(MakeDelayedGroup(std::move(group)), log);
  };
  RunRanks(
      2,
      [](World& w) {
        const int64_t n = 1000;
        const std::vector<char> full = Filled(w.rank(), 2 * n, DType::kF32);
        std::vector<float> shard(static_cast<size_t>(n));
        w.group().ReduceScatter(full.data(), shard.data(), n,
                                {DType::kF32, DType::kBF16, DType::kF32}, false);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(static_cast<double>(shard[static_cast<size_t>(i)]),
                    SumOf(2, w.rank() * n + i, DType::kF32, DType::kBF16));
        }
        w.group().AllReduce(shard.data(), n, DType::kF32, DType::kF16);
      },
      options);
  for (const auto& log : logs) {
    const std::vector<CollectiveRecord> records = log->records();
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].bytes, 2000);
    EXPECT_EQ(records[0].dtype, DType::kBF16);
    EXPECT_EQ(records[1].bytes, 2000);
    EXPECT_EQ(records[1].dtype, DType::kF16);
  }
}

TEST(CommWireCost, CastingTakesPiecesNotTheWhole) {
  // Whole numbers, exact in bf16, which differ from piece to piece: memory that is used again too
  // early shows.
  auto element = [](int64_t i) { return static_cast<float>(i % 61); };
  auto wrong = [&](const std::vector<float>& sums, int64_t begin, int64_t elems) {
    int64_t count = 0;
    for (int64_t i = 0; i < elems; ++i) {
      count += sums[static_cast<size_t>(i)] != 3 * element(begin + i) ? 1 : 0;
    }
    return count;
  };
  RunRanks(3, [&](World& w) {
    const int64_t n = 3 << 20;  // 12 MiB a shard, 6 of them travel to each peer
    std::vector<float> full(static_cast<size_t>(3 * n));
    for (int64_t i = 0; i < 3 * n; ++i) full[static_cast<size_t>(i)] = element(i);
    std::vector<float> shard(static_cast<size_t>(n));
    const WireTypes types{DType::kF32, DType::kBF16, DType::kF32};
    w.group().ReduceScatter(full.data(), shard.data(), n, types, false);
    EXPECT_EQ(wrong(shard, w.rank() * n, n), 0);
    MemoryStats stats = w.device().allocator().stats();
    EXPECT_EQ(stats[MemoryCategory::kStaging].current_bytes, 0);
    // Two pieces of 1 MiB from and to each of two peers, and one of this rank's own.
    EXPECT_EQ(stats[MemoryCategory::kStaging].peak_bytes, 9 << 20);
    w.group().AllReduce(full.data(), 3 * n, DType::kF32, DType::kBF16);
    EXPECT_EQ(wrong(full, 0, 3 * n), 0);
    stats = w.device().allocator().stats();
    EXPECT_EQ(stats[MemoryCategory::kStaging].current_bytes, 0);
    EXPECT_EQ(stats[MemoryCategory::kStaging].peak_bytes, 9 << 20);
  });
}

}  // namespace
}  // namespace sherd
