#include "sherd/shard/broadcast.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

// What the tests load: a number for each element, told by name and place.
std::vector<double> ValuesFor(const Parameter& p, double shift = 0.0) {
  double base = shift;
  for (char c : p.name()) base = base * 1.25 + c;
  std::vector<double> values(static_cast<size_t>(p.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.001 * base + 0.25 * static_cast<double>(i % 17) - static_cast<double>(i) / 64;
  }
  return values;
}

Whole WholeValues(const Module& model, double shift = 0.0) {
  Whole all;
  for (const Parameter& p : model.parameters()) all[p.name()] = ValuesFor(p, shift);
  return all;
}

ValueSource Source(double shift = 0.0) {
  return [shift](const Parameter& p) {
    return TensorOf<double>(p.local().device(), ValuesFor(p, shift), p.shape());
  };
}

// The texts the ranks threw.
class Texts {
 public:
  void Note(int rank, std::string text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_[rank] = std::move(text);
  }
  const std::map<int, std::string>& all() const { return texts_; }

 private:
  std::mutex mutex_;
  std::map<int, std::string> texts_;
};

TEST(Broadcast, EveryRankHasItsPiecesWhateverTheBuffer) {
  for (int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, [](World& world) {
      for (int64_t buffer_bytes : {int64_t{1}, int64_t{24}, int64_t{4} << 20}) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums());
        Initialize(model, world.device(), 1);
        BroadcastFromRankZero(model, world.group(), Source(), {.buffer_bytes = buffer_bytes});
        const Whole got = ValuesOf(model, &world.group());
        EXPECT_EQ(got, WholeValues(model));
      }
    });
  }
}

// A chunk holds the pieces of its parameters and zeros.
TEST(Broadcast, PaddingIsNotTouched) {
  RunRanks(4, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    BroadcastFromRankZero(model, world.group(), Source());
    std::map<const Storage*, double> rest;
    std::map<const Storage*, int64_t> places;
    for (const Parameter& p : model.parameters()) {
      const Tensor& local = p.local();
      const int64_t elems = local.storage()->bytes() / 8;
      if (rest.emplace(local.storage().get(), 0.0).second) {
        const Tensor chunk = Tensor::View(local.storage(), 0, DType::kF64, {elems});
        for (double value : chunk.ToHost<double>()) rest[local.storage().get()] += value;
        places[local.storage().get()] = elems;
      }
      for (double value : local.ToHost<double>()) rest[local.storage().get()] -= value;
      places[local.storage().get()] -= local.numel();
    }
    for (const auto& [storage, sum] : rest) EXPECT_NEAR(sum, 0.0, 1e-9) << places[storage];
  });
}

TEST(Broadcast, ModelsWithoutUnitsAreFilledToo) {
  RunRanks(3, [](World& world) {
    ShardModel model;
    Initialize(model, world.device(), 5 + static_cast<uint64_t>(world.rank()));
    BroadcastFromRankZero(model, world.group(), Source(), {.buffer_bytes = 40});
    EXPECT_EQ(ValuesOf(model, nullptr), WholeValues(model));
  });
}

// What was gathered before is gathered again, by all ranks alike, those with empty pieces too.
TEST(Broadcast, UnitsSeeTheNewValuesAndOldForwardsAreRefused) {
  for (int ranks : {1, 2, 4}) {
    RunRanks(ranks, [](World& world) {
      const Device plain_device = Device::Cpu();
      ShardModel plain;
      Initialize(plain, plain_device, 1);
      for (const Parameter& p : plain.parameters()) {
        kernels::Copy(TensorOf<double>(plain_device, ValuesFor(p), {p.numel()}), p.MutableLocal());
      }
      ShardModel model;
      ShardAll(model, world.mesh(), Sums({.reshard_after_forward = false}));
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      const Variable old = Energy(model(InputOf(world.device(), 0), {0, 1, 2}));
      BroadcastFromRankZero(model, world.group(), Source());
      for (const Parameter& p : model.parameters()) EXPECT_EQ(p.version(), 2) << p.name();
      const Tensor got = model(InputOf(world.device(), 0), {0, 1, 2}).value();
      const Tensor want = plain(InputOf(plain_device, 0), {0, 1, 2}).value();
      EXPECT_EQ(got.ToHost<double>(), want.ToHost<double>());
      if (world.size() > 1) return;  // the error would end the others' groups
      EXPECT_TRUE(Contains(ErrorOf([&] { tape.Backward(old); }), "changed between forward"));
    });
  }
}

// The piece of `whole` that this rank owns of each parameter.
void ExpectOwnPieces(const Module& model, const Whole& whole) {
  for (const Parameter& p : model.parameters()) {
    const auto begin = whole.at(p.name()).begin() + p.local_offset();
    EXPECT_EQ(p.local().ToHost<double>(), std::vector<double>(begin, begin + p.local().numel()))
        << p.name();
  }
}

// Of whatever stage and mesh: what is not cut is refreshed like what is.
TEST(Broadcast, EveryStageSeesTheValues) {
  const Stage stages[] = {kDataParallel, kZero1,           kZero2,
                          kZero3,        kHybridOptimizer, kZero3Everywhere};
  for (const Stage& stage : stages) {
    RunRanks(4, [&](World& world) {
      for (int shard_size : {2, 4}) {
        const Device plain_device = Device::Cpu();
        ShardModel plain(2);
        Initialize(plain, plain_device, 1);
        for (const Parameter& p : plain.parameters()) {
          kernels::Copy(TensorOf<double>(plain_device, ValuesFor(p), {p.numel()}),
                        p.MutableLocal());
        }
        ShardModel model(2);
        ShardAll(model, world.MakeMesh(shard_size), Sums({.stage = stage}));
        Initialize(model, world.device(), 1);
        const auto run = [&] { return model(InputOf(world.device(), 0), {0, 1}).value(); };
        run();
        BroadcastFromRankZero(model, world.group(), Source(), {.buffer_bytes = 56});
        ExpectOwnPieces(model, WholeValues(model));
        EXPECT_EQ(run().ToHost<double>(),
                  plain(InputOf(plain_device, 0), {0, 1}).value().ToHost<double>());
      }
    });
  }
}

TEST(Broadcast, TheSourceIsAskedOnRankZeroAloneTwiceForEach) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    std::vector<std::string> asked;
    BroadcastFromRankZero(model, world.group(), [&](const Parameter& p) {
      asked.push_back(p.name());
      return Source()(p);
    });
    std::vector<std::string> want;
    for (int time = 0; time < 2 && world.rank() == 0; ++time) {
      for (const Parameter& p : model.parameters()) want.push_back(p.name());
    }
    EXPECT_EQ(asked, want);
  });
}

TEST(Broadcast, ValuesOfAnyStrides) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    BroadcastFromRankZero(model, world.group(), [](const Parameter& p) {
      if (p.shape().rank() != 2) return Source()(p);
      const int64_t rows = p.shape()[0], columns = p.shape()[1];
      const std::vector<double> values = ValuesFor(p);
      std::vector<double> turned(values.size());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          turned[static_cast<size_t>(j * rows + i)] = values[static_cast<size_t>(i * columns + j)];
        }
      }
      return TensorOf<double>(p.local().device(), turned, {columns, rows}).Transpose(0, 1);
    });
    EXPECT_EQ(ValuesOf(model, &world.group()), WholeValues(model));
  });
}

// Runs a broadcast that fails; gives what each rank threw, and expects nothing to have changed.
std::map<int, std::string> Failure(int ranks, const ValueSource& source) {
  Texts texts;
  RunRanks(ranks, [&](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    const Whole before = ValuesOf(model, &world.group());
    try {
      BroadcastFromRankZero(model, world.group(), source);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      texts.Note(world.rank(), error.what());
    }
    for (const Parameter& p : model.parameters()) EXPECT_EQ(p.version(), 1) << p.name();
    EXPECT_EQ(ValuesOf(model, &world.group()), before);
    // The group is as good as before.
    BroadcastFromRankZero(model, world.group(), Source());
    EXPECT_EQ(ValuesOf(model, &world.group()), WholeValues(model));
  });
  return texts.all();
}

TEST(Broadcast, MissingAndMisshapenValuesAreNamedOnAllRanks) {
  const auto source = [](const Parameter& p) -> Tensor {
    if (p.name() == "block0.norm.weight") return {};
    if (p.name() == "block0.up.weight") {
      return Tensor::Zeros(p.local().device(), DType::kF64, {5, 7});
    }
    if (p.name() == "head.weight") return Tensor::Zeros(p.local().device(), DType::kF32, p.shape());
    return Source()(p);
  };
  const std::map<int, std::string> texts = Failure(3, source);
  ASSERT_EQ(texts.size(), 3u);
  for (const auto& [rank, text] : texts) {
    EXPECT_EQ(text, texts.at(0));
    EXPECT_TRUE(Contains(text, "'block0.norm.weight' has no value"));
    EXPECT_TRUE(Contains(text, "'block0.up.weight' is f64 [7, 5] on cpu:"));
    EXPECT_TRUE(Contains(text, "its value is f64 [5, 7] on cpu:"));
    EXPECT_TRUE(Contains(text, "'head.weight' is f64 [3, 5] on cpu:"));
    EXPECT_TRUE(Contains(text, "its value is f32 [3, 5] on cpu:"));
    EXPECT_TRUE(Contains(text, "rank 0"));
    EXPECT_FALSE(Contains(text, "block0.down"));
  }
}

TEST(Broadcast, ValuesOnAnotherDeviceAreRefused) {
  const Device elsewhere = Device::Cpu({.index = 5});
  const std::map<int, std::string> texts = Failure(
      2, [&](const Parameter& p) { return TensorOf<double>(elsewhere, ValuesFor(p), p.shape()); });
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_TRUE(Contains(texts.at(1), "on " + elsewhere.id().ToString()));
}

TEST(Broadcast, AFailingSourceIsAnErrorOfAllRanks) {
  const std::map<int, std::string> texts = Failure(2, [](const Parameter& p) {
    if (p.name() == "head.weight") throw std::runtime_error("the file ends early");
    return Source()(p);
  });
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts.at(0), texts.at(1));
  EXPECT_TRUE(Contains(texts.at(1), "'head.weight': the file ends early"));
}

TEST(Broadcast, AValueThatIsWorseTheSecondTimeEndsAllRanks) {
  Texts texts;
  const auto body = [&](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    int asked = 0;
    try {
      BroadcastFromRankZero(model, world.group(), [&](const Parameter& p) {
        return ++asked > 7 ? Tensor() : Source()(p);
      });
    } catch (const Error& error) {
      texts.Note(world.rank(), error.what());
    }
  };
  EXPECT_TRUE(Contains(ErrorOf([&] { RunRanks(2, body); }), "rank 0 aborted"));
  ASSERT_EQ(texts.all().size(), 2u);
  for (const auto& [rank, text] : texts.all()) EXPECT_TRUE(Contains(text, "has no value")) << rank;
}

TEST(Broadcast, ModelsOfOtherParametersAreAnErrorOfAllRanks) {
  Texts texts;
  RunRanks(3, [&](World& world) {
    ShardModel model(world.rank() == 2 ? 2 : 1);
    Initialize(model, world.device(), 1);
    try {
      BroadcastFromRankZero(model, world.group(), Source());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
      texts.Note(world.rank(), error.what());
    }
  });
  ASSERT_EQ(texts.all().size(), 3u);
  for (const auto& [rank, text] : texts.all()) EXPECT_TRUE(Contains(text, "rank 2 has")) << rank;
}

TEST(Broadcast, ParametersWithoutMemoryAreNamedOnAllRanks) {
  Texts texts;
  RunRanks(2, [&](World& world) {
    ShardModel model(1);
    if (world.rank() == 0) Initialize(model, world.device(), 1);
    try {
      BroadcastFromRankZero(model, world.group(), Source());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
      texts.Note(world.rank(), error.what());
    }
    for (const Parameter& p : model.parameters()) EXPECT_EQ(p.version(), 1 - world.rank());
  });
  ASSERT_EQ(texts.all().size(), 2u);
  EXPECT_EQ(texts.all().at(0), texts.all().at(1));
  EXPECT_TRUE(Contains(texts.all().at(0), "rank 1: "));
  EXPECT_TRUE(Contains(texts.all().at(0), "'head.weight' has no memory yet"));
}

// One matrix of 64 KiB: a rank holds its piece and the buffer, the root one value besides.
TEST(Broadcast, MemoryIsThePiecesAndTheBuffer) {
  struct Wide : Module {
    Wide() : layer(128, 64, Initializer::Normal(1.0), DType::kF64) {
      RegisterModule("layer", layer);
    }
    LinearLayer layer;
  };
  RunRanks(4, [](World& world) {
    Wide model;
    FullyShard(model, world.mesh(), Sums());
    CachingAllocator& allocator = world.device().allocator();
    const int64_t before = allocator.stats().total.current_bytes;
    allocator.ResetPeaks();
    constexpr int64_t kBuffer = 1024;
    BroadcastFromRankZero(model, world.group(), Source(), {.buffer_bytes = kBuffer});
    const MemoryStats stats = allocator.stats();
    EXPECT_EQ(stats.total.current_bytes, before);
    EXPECT_EQ(stats[MemoryCategory::kUnsharded].peak_bytes, 0);
    const int64_t value = world.rank() == 0 ? 128 * 64 * 8 : 0;
    EXPECT_LE(stats.total.peak_bytes, before + kBuffer + value);
  });
}

}  // namespace
}  // namespace sherd::testing
