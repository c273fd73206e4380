// What a cached step of 32 times the pairs holds more than a plain step: embeddings and their
// gradients, to the byte; and while the loss runs, scores.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "sherd/autograd/ops/reduce.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/contrastive/ways.h"

namespace sherd::testing {
namespace {

constexpr int64_t kTokens = 64;  // T, of a query and of a document
constexpr int64_t kColumns = 3;  // C, of an embedding
constexpr int kChunks = 32;

// The mean of what two blocks, called twice, make of a row's tokens: many activations, for few
// columns.
class Encoder : public Module {
 public:
  Encoder() : rows(2) { RegisterModule("rows", rows); }
  // Shapes: x [B T, 5], result [B, C].
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Encoder& self, const Variable& x) {
          const Variable y = self.rows(x, {0, 1, 0, 1});
          return Mean(Reshape(y, {x.dim(0) / kTokens, kTokens, kColumns}), 1);
        },
        x);
  }
  ShardModel rows;
};

// The most that the second of two equal steps held.
class Measured {
 public:
  Measured(World& world, bool checkpoint, int prefetch = 1) : world_(world) {
    for (auto& block : encoder_.rows.blocks) {
      if (checkpoint) Checkpoint(*block);
      FullyShard(*block, world.mesh(), Sums({.prefetch = prefetch}));
    }
    FullyShard(encoder_, world.mesh(), Sums({.prefetch = prefetch}));
    Initialize(encoder_, world.device(), 1);
  }
  MemoryStats Plain(int64_t pairs) {
    return PeaksOf([&] { return Embed(0, pairs); });
  }
  MemoryStats Cached(int64_t pairs, int chunks) {
    const int64_t each = pairs / chunks;
    return PeaksOf([&, each, chunks] {
      return CachedStep(encoder_).Embed(
          std::vector<std::vector<int64_t>>(static_cast<size_t>(chunks)),
          [this, each](int64_t chunk) { return Embed(chunk * each, (chunk + 1) * each); });
    });
  }

 private:
  template <typename Fn>
  MemoryStats PeaksOf(const Fn& embed) {
    for (int k = 0; k < 2; ++k) {
      world_.device().allocator().ResetPeaks();
      const Recording on(tape_, {.seed = 5, .step = 1});
      const std::vector<Variable> e = embed();
      tape_.Backward(RankingLoss({e[0], e[1]}, world_.mesh()).value);
      tape_.Reset();
    }
    return world_.device().allocator().stats();
  }
  std::vector<Variable> Embed(int64_t begin, int64_t end) {
    std::vector<Variable> e;
    for (const int side : {0, 1}) {
      e.push_back(encoder_(InputRows(world_.device(), {begin * kTokens, end * kTokens}, side)));
    }
    return e;
  }

  World& world_;
  Encoder encoder_;
  Tape tape_;
};

// Bytes of the embeddings of one side, as the allocator counts them.
int64_t SideBytes(int64_t pairs) { return (pairs * kColumns * 8 + 63) / 64 * 64; }

// While a chunk runs backward, a cached step holds the embeddings of both sides and the gradients
// of both. A plain step runs documents first, which is the call made last: it has given up their
// gradient when the most is held.
int64_t HeldByCached(int64_t pairs) { return 4 * SideBytes(pairs); }
int64_t HeldByPlain(int64_t pairs) { return 3 * SideBytes(pairs); }

int64_t Activations(const MemoryStats& stats) {
  return stats[MemoryCategory::kActivation].peak_bytes;
}

TEST(CachedMemoryTest, ThePeakApartFromEmbeddingsIsThatOfAPlainStepToTheByte) {
  for (const bool checkpoint : {false, true}) {
    for (const int64_t pairs : {2, 4}) {
      RunRanks(1, [&](World& world) {
        Measured measured(world, checkpoint);
        const int64_t plain = measured.Plain(pairs).total.peak_bytes;
        const int64_t one = measured.Cached(pairs, 1).total.peak_bytes;
        const int64_t all = measured.Cached(kChunks * pairs, kChunks).total.peak_bytes;
        std::printf(
            "%d pairs a chunk, checkpoints %s: plain %lld bytes, 32 chunks %lld; of these "
            "embeddings and their gradients %lld and %lld\n",
            static_cast<int>(pairs), checkpoint ? "on" : "off", static_cast<long long>(plain),
            static_cast<long long>(all), static_cast<long long>(HeldByPlain(pairs)),
            static_cast<long long>(HeldByCached(kChunks * pairs)));
        EXPECT_EQ(one - HeldByCached(pairs), plain - HeldByPlain(pairs));
        EXPECT_EQ(all - HeldByCached(kChunks * pairs), plain - HeldByPlain(pairs));
        // It is not that nothing grows: a plain step of as many pairs holds what its ops save.
        EXPECT_GT(measured.Plain(kChunks * pairs).total.peak_bytes, 2 * all);
      });
    }
  }
}

TEST(CachedMemoryTest, OnTwoRanksActivationsGrowByTheEmbeddingsAlone) {
  for (const int prefetch : {0, 1}) {
    RunRanks(2, [&](World& world) {
      Measured measured(world, /*checkpoint=*/false, prefetch);
      measured.Plain(2);  // the orders that gathers ahead follow are known then
      const MemoryStats plain = measured.Plain(2);
      const MemoryStats all = measured.Cached(kChunks * 2, kChunks);
      EXPECT_EQ(Activations(all) - HeldByCached(kChunks * 2), Activations(plain) - HeldByPlain(2));
      // What is sent, and is in flight beside this, depends on time.
      for (const MemoryCategory category :
           {MemoryCategory::kParameterShard, MemoryCategory::kGradientShard,
            MemoryCategory::kWorkspace}) {
        EXPECT_EQ(all[category].peak_bytes, plain[category].peak_bytes) << NameOf(category);
      }
      // Chunks may gather a block of 75 f64 ahead in their backward where the plain step does not;
      // however many there are.
      const int64_t gathered = all[MemoryCategory::kUnsharded].peak_bytes;
      EXPECT_LE(gathered, plain[MemoryCategory::kUnsharded].peak_bytes + prefetch * 640);
      EXPECT_EQ(gathered, measured.Cached(2, 1)[MemoryCategory::kUnsharded].peak_bytes);
    });
  }
}

TEST(CachedMemoryTest, TheLossHoldsScoresTwiceAndEmbeddings) {
  for (const int ranks : {1, 2}) {
    RunRanks(ranks, [&](World& world) {
      constexpr int64_t kPairs = 4 * kChunks;
      Measured measured(world, /*checkpoint=*/true);
      const int64_t peak = Activations(measured.Cached(kPairs, kChunks));
      // Scores of own pairs with all documents, and their gradient.
      const int64_t scores = 2 * kPairs * kPairs * ranks * 8;
      // Of both sides, of own queries made unit and scaled, of all documents as they came and made
      // unit; and the lengths of own queries and all documents.
      const int64_t embeddings = (4 + 2 * ranks) * SideBytes(kPairs);
      const int64_t lengths = (1 + ranks) * kPairs * 8;
      EXPECT_GE(peak, scores + embeddings);
      EXPECT_LE(peak, scores + embeddings + lengths);
      if (world.rank() != 0) return;
      std::printf("%d ranks, %d pairs each: scores %lld bytes, embeddings %lld, peak %lld\n", ranks,
                  static_cast<int>(kPairs), static_cast<long long>(scores),
                  static_cast<long long>(embeddings), static_cast<long long>(peak));
    });
  }
}

}  // namespace
}  // namespace sherd::testing
