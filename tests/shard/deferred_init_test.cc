// A model built without memory, sharded, then initialised: every rank fills its pieces with the
// bits of the whole model's initialisation and never holds more than its shard.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/nn/layers.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

// Parameters of every initialiser and float dtype, of odd sizes; some are smaller than the ranks
// are many.
class Leaves : public Module {
 public:
  Leaves(DType dtype, int64_t scale) {
    RegisterParameter("normal", {7 * scale, 13}, Initializer::Normal(0.02), dtype);
    RegisterParameter("uniform", {3, 5 * scale, 11}, Initializer::Uniform(-0.3, 0.7), dtype);
    RegisterParameter("constant", {9 * scale}, Initializer::Constant(1.25), dtype);
    frozen = RegisterParameter("frozen", {17 * scale}, Initializer::Normal(1.0), dtype);
    RegisterParameter("tiny", {1}, Initializer::Normal(1.0), dtype);
    frozen.set_requires_grad(false);
  }
  Parameter frozen;
};

class DeferredModel : public Module {
 public:
  explicit DeferredModel(int64_t scale = 1) {
    int i = 0;
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      parts.push_back(std::make_unique<Leaves>(dtype, scale));
      RegisterModule("part" + std::to_string(i++), *parts.back());
    }
    own = RegisterParameter("own", {23 * scale, 3}, Initializer::Normal(0.5));
  }
  std::vector<std::unique_ptr<Leaves>> parts;
  Parameter own;
};

void Shard(DeferredModel& model, const Mesh& mesh) {
  // The first two are units of their own, the root takes the rest in four dtypes.
  FullyShard(*model.parts[0], mesh, Sums());
  FullyShard(*model.parts[1], mesh, Sums());
  FullyShard(model, mesh, Sums());
}

std::string BytesOf(const Tensor& x) {
  return std::string(static_cast<const char*>(x.raw()), static_cast<size_t>(x.bytes()));
}

std::map<std::string, std::string> WholeBits(uint64_t seed) {
  DeferredModel model;
  Initialize(model, Device::Cpu(), seed);
  std::map<std::string, std::string> bits;
  for (const Parameter& p : model.parameters()) bits[p.name()] = BytesOf(p.local());
  return bits;
}

TEST(DeferredInit, EveryRankHasTheBitsOfTheWholeInitialisation) {
  for (uint64_t seed : {1, 77}) {
    const std::map<std::string, std::string> want = WholeBits(seed);
    ASSERT_EQ(want.size(), 21u);
    for (int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(ranks);
      RunRanks(ranks, [&](World& world) {
        DeferredModel model;
        Shard(model, world.mesh());
        PoisonFreeMemory(world.device());
        Initialize(model, world.device(), seed);
        for (const Parameter& p : model.parameters()) {
          const auto elem = static_cast<size_t>(SizeOf(p.dtype()));
          const std::string& whole = want.at(p.name());
          const std::string piece = whole.substr(static_cast<size_t>(p.local_offset()) * elem,
                                                 static_cast<size_t>(p.local().numel()) * elem);
          EXPECT_TRUE(BytesOf(p.local()) == piece) << p.name() << " on rank " << world.rank();
          // Over all ranks nothing is missing.
          int64_t owned = p.local().numel();
          double sum = static_cast<double>(owned);
          world.group().AllReduce(&sum, 1, DType::kF64);
          EXPECT_EQ(sum, static_cast<double>(p.numel())) << p.name();
        }
      });
    }
  }
}

// Values differ between parameters, elements and seeds, or the test above would show nothing.
TEST(DeferredInit, ValuesDifferWhereTheyShould) {
  const std::map<std::string, std::string> a = WholeBits(1), b = WholeBits(2);
  EXPECT_NE(a.at("part0.normal"), b.at("part0.normal"));
  EXPECT_NE(a.at("part0.uniform"), b.at("part0.uniform"));
  EXPECT_EQ(a.at("part0.constant"), b.at("part0.constant"));
  const std::string& normal = a.at("part0.normal");
  EXPECT_NE(normal.substr(0, 16), normal.substr(16, 16));
  EXPECT_NE(normal.substr(0, 16), a.at("own").substr(0, 16));
}

int64_t ShardBytes(const Module& model) {
  int64_t bytes = 0;
  for (const Unit* unit : UnitsOf(model)) {
    for (const LayoutSegment& segment : unit->layout().segments()) {
      const int64_t chunk = segment.chunk_elems * SizeOf(segment.dtype);
      bytes += (chunk + CachingAllocator::kAlignment - 1) / CachingAllocator::kAlignment *
               CachingAllocator::kAlignment;
    }
  }
  return bytes;
}

TEST(DeferredInit, NoRankEverHoldsMoreThanItsShard) {
  constexpr int64_t kScale = 40;
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    RunRanks(ranks, [&](World& world) {
      CachingAllocator& allocator = world.device().allocator();
      const int64_t before = allocator.stats().total.current_bytes;
      const int64_t made = allocator.stats().allocations;
      DeferredModel model(kScale);
      EXPECT_EQ(allocator.stats().allocations, made) << "a model without values has no memory";
      for (const Parameter& p : model.parameters()) EXPECT_FALSE(p.local().defined());
      allocator.ResetPeaks();
      Shard(model, world.mesh());
      Initialize(model, world.device(), 3);
      const MemoryStats stats = allocator.stats();
      const int64_t shard = ShardBytes(model);
      EXPECT_LE(stats.total.peak_bytes - before, shard);
      EXPECT_EQ(stats[MemoryCategory::kParameterShard].current_bytes, shard);
      int64_t whole = 0;
      for (const Parameter& p : model.parameters()) whole += p.numel() * SizeOf(p.dtype());
      // Chunks are equal but for less than one element a segment, and blocks are rounded up.
      EXPECT_LE(shard, whole / world.size() + 12 * 2 * CachingAllocator::kAlignment);
    });
  }
}

// Also where pieces are cut for the optimizer alone, over two axes, and computed with in bf16.
TEST(DeferredInit, EveryStageAndPrecisionOwnsBitsOfTheWholeInitialisation) {
  const std::map<std::string, std::string> want = WholeBits(5);
  const Stage stages[] = {kDataParallel, kZero1, kZero2, kHybridOptimizer, kZero3Everywhere};
  for (const Stage& stage : stages) {
    for (const MixedPrecision& precision : {MixedPrecision{}, kBf16}) {
      RunRanks(4, [&](World& world) {
        DeferredModel model;
        FullyShard(model, world.MakeMesh(2), Sums({.stage = stage, .precision = precision}));
        Initialize(model, world.device(), 5);
        for (const Parameter& p : model.parameters()) {
          EXPECT_EQ(p.local().dtype(), p.dtype());
          const auto elem = static_cast<size_t>(SizeOf(p.dtype()));
          const std::string piece =
              want.at(p.name()).substr(static_cast<size_t>(p.local_offset()) * elem,
                                       static_cast<size_t>(p.local().numel()) * elem);
          EXPECT_TRUE(BytesOf(p.local()) == piece) << p.name() << " on rank " << world.rank();
        }
      });
    }
  }
}

// Sharding a model that has values keeps them: the same bits either way.
TEST(DeferredInit, ShardedBeforeOrAfterInitialisationIsTheSame) {
  for (int ranks : {1, 3}) {
    RunRanks(ranks, [](World& world) {
      DeferredModel deferred, eager;
      Shard(deferred, world.mesh());
      Initialize(deferred, world.device(), 9);
      Initialize(eager, world.device(), 9);
      Shard(eager, world.mesh());
      const std::vector<Parameter> a = deferred.parameters(), b = eager.parameters();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(SameBits(a[i].local(), b[i].local())) << a[i].name();
      }
    });
  }
}

}  // namespace
}  // namespace sherd::testing
