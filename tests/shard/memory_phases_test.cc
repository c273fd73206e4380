// What each phase of a step holds, category by category, each term of the sum by name; and that ten
// steps hold no more than two.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/shard/training.h"

namespace sherd::testing {
namespace {

constexpr int kBlocks = 4;
constexpr int64_t kPieceBytes = int64_t{1} << 16;  // of messages, the least

int64_t Rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Case {
  int ranks;
  bool reshard = true;
  int prefetch = 0;
  bool offload = false;
  bool checkpoint = false;
  bool slow = false;  // reductions, so that those of many blocks would be in flight
};

// Bytes from shapes alone: a block has a norm of 5, two matrices of 35; the head is 3 x 5.
struct Terms {
  explicit Terms(int ranks)
      : block(Rounded(Pieces(5 + 35 + 35, ranks) * ranks * 8)),
        root(Rounded(Pieces(15, ranks) * ranks * 8)),
        shards(kBlocks * Rounded(Pieces(75, ranks) * 8) + Rounded(Pieces(15, ranks) * 8)) {}
  static int64_t Pieces(int64_t elems, int ranks) { return (elems + ranks - 1) / ranks; }
  const int64_t block;   // B: one block, whole
  const int64_t root;    // N: what is in no block, whole
  const int64_t shards;  // S: what a rank owns
};

// A model in training, whose phases are measured one by one.
class Measured {
 public:
  Measured(const Case& c, const Device& device, int rank)
      : device_(device), rank_(rank), model_(kBlocks), checkpoint_(c.checkpoint) {
    for (auto& block : model_.blocks) {
      if (checkpoint_) Checkpoint(*block);
    }
  }
  ShardModel& model() { return model_; }
  void MakeOptimizer() { optimizer_ = std::make_unique<AdamW>(model_.parameters()); }

  // The phases' figures: peaks are of the phase, currents of its end.
  MemoryStats Forward(int step) {
    input_ = InputOf(device_, rank_, static_cast<uint64_t>(step));
    device_.allocator().ResetPeaks();
    recording_.emplace(tape_);
    loss_ = Energy(model_(input_, {0, 1, 2, 3}));
    return device_.allocator().stats();
  }
  MemoryStats Backward() {
    device_.allocator().ResetPeaks();
    tape_.Backward(loss_);
    recording_.reset();
    tape_.Reset();
    loss_ = input_ = Variable();
    GradientsOf(model_, nullptr);  // waits for reductions
    return device_.allocator().stats();
  }
  MemoryStats Step() {
    device_.allocator().ResetPeaks();
    optimizer_->Step({.learning_rate = kTrainingRate});
    return device_.allocator().stats();
  }
  MemoryStats Clear() {
    device_.allocator().ResetPeaks();
    for (const Parameter& parameter : model_.parameters()) parameter.ClearGrad();
    return device_.allocator().stats();
  }

 private:
  const Device device_;
  const int rank_;
  ShardModel model_;
  const bool checkpoint_;
  std::unique_ptr<AdamW> optimizer_;
  Tape tape_;
  std::optional<Recording> recording_;
  Variable input_, loss_;
};

int64_t Now(const MemoryStats& stats, MemoryCategory category) {
  return stats[category].current_bytes;
}
int64_t Peak(const MemoryStats& stats, MemoryCategory category) {
  return stats[category].peak_bytes;
}

// Peaks of the plain model, in its forward and in its backward.
struct Plain {
  explicit Plain(const Case& c) {
    const Device device = Device::Cpu();
    Measured plain(c, device, 0);
    Initialize(plain.model(), device, 1);
    forward = plain.Forward(0);
    backward = plain.Backward();
  }
  MemoryStats forward, backward;
};

// What the forward and the backward of a step may gather at most, beside N.
int64_t GatheredBlocks(const Case& c, int step) {
  if (!c.reshard) return kBlocks;
  return c.prefetch > 0 && step > 0 ? 1 + c.prefetch : 1;
}

void ExpectForward(const Case& c, const Terms& t, int step, const MemoryStats& stats) {
  const bool alone = c.ranks == 1 && !c.offload;
  EXPECT_EQ(Peak(stats, MemoryCategory::kUnsharded),
            alone ? 0 : t.root + GatheredBlocks(c, step) * t.block);
  // Until the backward: the root, and the blocks that are not resharded.
  EXPECT_EQ(Now(stats, MemoryCategory::kUnsharded),
            alone ? 0 : t.root + (c.reshard ? 0 : kBlocks * t.block));
  EXPECT_EQ(Peak(stats, MemoryCategory::kGradient), 0);
}

void ExpectBackward(const Case& c, const Terms& t, int step, const MemoryStats& stats) {
  const bool alone = c.ranks == 1 && !c.offload;
  EXPECT_EQ(Peak(stats, MemoryCategory::kUnsharded),
            alone ? 0 : t.root + GatheredBlocks(c, step) * t.block);
  EXPECT_EQ(Now(stats, MemoryCategory::kUnsharded), 0);
  // The root's gradients, those of the open block, and one block's on their way.
  if (c.ranks > 1) {
    EXPECT_GE(Peak(stats, MemoryCategory::kGradient), t.root + t.block);
    EXPECT_LE(Peak(stats, MemoryCategory::kGradient), t.root + 2 * t.block);
  } else {
    EXPECT_EQ(Peak(stats, MemoryCategory::kGradient), 0) << "the sums are written themselves";
  }
  EXPECT_EQ(Now(stats, MemoryCategory::kGradient), 0);
}

// The categories that are no matter of sharding are what they are without it, and the transport
// holds a few pieces for each peer.
void ExpectTotal(const MemoryStats& stats, const MemoryStats& plain, const Case& c) {
  for (const MemoryCategory same : {MemoryCategory::kActivation, MemoryCategory::kWorkspace}) {
    EXPECT_EQ(Peak(stats, same), Peak(plain, same)) << NameOf(same);
  }
  EXPECT_LE(Peak(stats, MemoryCategory::kStaging), 4 * (c.ranks - 1) * kPieceBytes);
}

// After each phase: what a rank owns, its gradients once there are any, its moments.
void ExpectOwned(const Case& c, const Terms& t, bool gradients, bool moments,
                 const MemoryStats& stats) {
  const int64_t here = c.offload ? 0 : t.shards;
  EXPECT_EQ(Now(stats, MemoryCategory::kParameterShard), here);
  EXPECT_EQ(Now(stats, MemoryCategory::kGradientShard), gradients ? here : 0);
  EXPECT_EQ(Now(stats, MemoryCategory::kOptimizer) + Now(stats, MemoryCategory::kOffloaded),
            (moments ? 2 * t.shards : 0) + (c.offload ? t.shards * (gradients ? 2 : 1) : 0));
}

// Runs ten steps, each phase of which holds what the terms say, and no step more than the second.
void ExpectSteps(const Case& c, const Plain& plain, Measured& run, CachingAllocator& allocator) {
  const Terms t(c.ranks);
  std::vector<int64_t> held, allocations;
  for (int step = 0; step < 10; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    const int64_t before = allocator.stats().allocations;
    const MemoryStats forward = run.Forward(step);
    ExpectForward(c, t, step, forward);
    ExpectOwned(c, t, step > 0, step > 0, forward);
    ExpectTotal(forward, plain.forward, c);
    const MemoryStats backward = run.Backward();
    ExpectBackward(c, t, step, backward);
    ExpectOwned(c, t, true, step > 0, backward);
    ExpectTotal(backward, plain.backward, c);
    EXPECT_EQ(Now(backward, MemoryCategory::kActivation), 0);
    const MemoryStats stepped = run.Step();
    ExpectOwned(c, t, true, true, stepped);
    EXPECT_EQ(Peak(stepped, MemoryCategory::kUnsharded), 0);
    EXPECT_EQ(stepped.total.peak_bytes, stepped.total.current_bytes) << "an update needs nothing";
    const MemoryStats cleared = run.Clear();
    ExpectOwned(c, t, true, true, cleared);  // the memory of sums stays for the next step
    held.push_back(cleared.total.current_bytes);
    allocations.push_back(cleared.allocations - before);
  }
  for (size_t step = 2; step < held.size(); ++step) {
    EXPECT_EQ(held[step], held[1]) << "step " << step;
    EXPECT_EQ(allocations[step], allocations[1]) << "step " << step;
  }
}

void ExpectPhases(const Case& c) {
  SCOPED_TRACE(absl::StrCat(c.ranks, " ranks", c.reshard ? "" : ", kept", ", prefetch ", c.prefetch,
                            c.offload ? ", offload" : "", c.checkpoint ? ", checkpoint" : "",
                            c.slow ? ", slow" : ""));
  const Plain plain(c);
  RankOptions ranks;
  if (c.slow) ranks = Delayed("reduce", absl::Milliseconds(10));
  ranks.piece_bytes = kPieceBytes;
  RunRanks(
      c.ranks,
      [&](World& world) {
        Measured run(c, world.device(), world.rank());
        const FullyShardOptions options{
            .reshard_after_forward = c.reshard, .prefetch = c.prefetch, .offload = c.offload};
        for (auto& block : run.model().blocks) FullyShard(*block, world.mesh(), Sums(options));
        FullyShard(run.model(), world.mesh(), Sums({.prefetch = c.prefetch, .offload = c.offload}));
        Initialize(run.model(), world.device(), 1);
        const MemoryStats made = world.device().allocator().stats();
        ExpectOwned(c, Terms(c.ranks), false, false, made);
        EXPECT_EQ(made.total.peak_bytes, made.total.current_bytes) << "deferred: never whole";
        run.MakeOptimizer();
        ExpectSteps(c, plain, run, world.device().allocator());
      },
      ranks);
}

TEST(MemoryPhases, AreTheSumsOfTheirTerms) {
  for (int ranks : {1, 2, 3}) {
    for (const bool reshard : {true, false}) {
      for (const int prefetch : {0, 1, 2}) {
        if (!reshard && prefetch > 0) continue;
        ExpectPhases({.ranks = ranks, .reshard = reshard, .prefetch = prefetch});
      }
    }
  }
}

TEST(MemoryPhases, Offloaded) {
  for (int ranks : {1, 2}) ExpectPhases({.ranks = ranks, .offload = true});
}

TEST(MemoryPhases, WithSlowReductions) { ExpectPhases({.ranks = 2, .slow = true}); }

TEST(MemoryPhases, Checkpointed) {
  for (int ranks : {1, 2}) ExpectPhases({.ranks = ranks, .checkpoint = true});
}

TEST(MemoryPhases, LocalAccumulationHoldsWholeGradientsUntilTheyAreSent) {
  RunRanks(2, [](World& world) {
    const Terms t(2);
    Measured run({.ranks = 2}, world.device(), world.rank());
    ShardAll(run.model(), world.mesh(), Sums());
    Initialize(run.model(), world.device(), 1);
    for (const GradientSync sync :
         {GradientSync::kNone, GradientSync::kNone, GradientSync::kFull}) {
      SetGradientSync(run.model(), sync);
      run.Forward(0);
      const MemoryStats stats = run.Backward();
      const bool local = sync == GradientSync::kNone;
      EXPECT_EQ(Now(stats, MemoryCategory::kGradient), local ? t.root + kBlocks * t.block : 0);
      EXPECT_EQ(Now(stats, MemoryCategory::kGradientShard), local ? 0 : t.shards);
      EXPECT_EQ(Peak(stats, MemoryCategory::kGradient), t.root + kBlocks * t.block);
    }
  });
}

TEST(MemoryPhases, ParkedBlocksKeepTheirPartBetweenForwardAndBackward) {
  RunRanks(4, [](World& world) {
    const Terms t(4);
    Measured run({.ranks = 4}, world.device(), world.rank());
    ShardAll(run.model(), world.mesh(), Sums({.park = 2, .prefetch = 0}));
    Initialize(run.model(), world.device(), 1);
    const int64_t half = Rounded(Terms::Pieces(75, 4) * 2 * 8);
    const MemoryStats forward = run.Forward(0);
    EXPECT_EQ(Now(forward, MemoryCategory::kUnsharded), t.root + kBlocks * half);
    EXPECT_EQ(Peak(forward, MemoryCategory::kUnsharded), t.root + kBlocks * half + t.block);
    const MemoryStats backward = run.Backward();
    EXPECT_EQ(Peak(backward, MemoryCategory::kUnsharded), t.root + kBlocks * half + t.block);
    EXPECT_EQ(Now(backward, MemoryCategory::kUnsharded), 0);
  });
}

}  // namespace
}  // namespace sherd::testing
