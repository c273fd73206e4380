// A batch embedded in chunks gives the gradients of the whole batch at once: bit for bit with one
// chunk, else to rounding, however the chunks lie on the ranks, with dropout, checkpoints, windows
// and every way to reduce. And what it sends.

#include "sherd/shard/cached_step.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/comm/recording_group.h"
#include "tests/contrastive/ways.h"

namespace sherd::testing {
namespace {

// A backward without a window: the units divide by the ranks, and the rest is done by hand.
Outcome RunBare(World& world, const Way& way) {
  RaggedRank rank(world, way.setup);
  Outcome outcome;
  const Range own = OwnRanges(world, way)[0];
  const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = SamplesOf(own)});
  const LossSum loss = LossOf(rank, own, way);
  double sum = loss.value.value().Item<double>();
  rank.tape.Backward(loss.value, world.size() / 9.0);
  world.group().AllReduce(&sum, 1, DType::kF64);
  outcome.loss = sum / 9.0;
  outcome.gradients = GradientsOf(rank.model, &world.group());
  return outcome;
}

TEST(CachedStepTest, OneChunkHasTheBitsOfAPlainStep) {
  for (const bool checkpoint : {false, true}) {
    for (const Cut& pairs : {Cut{9}, Cut{4, 5}, Cut{2, 4, 3}}) {
      const std::vector<int> none(pairs.size(), 0), one(pairs.size(), 1);
      RaggedSetup setup{.checkpoint = checkpoint};
      // Blocks that compute in f32, too.
      if (checkpoint) setup.options.precision = {.parameters = DType::kF32, .output = DType::kF64};
      const Outcome plain = RunOn({.pairs = pairs, .chunks = none, .setup = setup});
      const Outcome cached = RunOn({.pairs = pairs, .chunks = one, .setup = setup});
      EXPECT_EQ(cached.loss, plain.loss);
      EXPECT_EQ(cached.gradients, plain.gradients);
    }
  }
}

TEST(CachedStepTest, AnyChunksOnAnyRanksGiveTheJoinedBatch) {
  const Outcome want = Joined();
  const std::vector<Way> splits = {
      {{9}, {2}},       {{9}, {8}},       {{4, 5}, {2, 2}},       {{4, 5}, {1, 3}},
      {{9, 0}, {3, 0}}, {{0, 9}, {0, 4}}, {{3, 4, 2}, {3, 1, 2}}, {{4, 0, 5}, {2, 0, 5}}};
  // Every split plain and with one of the others, in turn; each of those with every reduction.
  for (size_t k = 0; k < splits.size(); ++k) {
    const Way& split = splits[k];
    for (const CachedReduction reduction :
         {CachedReduction::kEachChunk, CachedReduction::kOncePerStep}) {
      const bool once = reduction == CachedReduction::kOncePerStep;
      for (const int form : {0, 1 + (static_cast<int>(k) + (once ? 1 : 0)) % 3}) {
        Way way = split;
        way.reduction = reduction;
        way.setup.checkpoint = form == 1;
        way.setup.checkpoint_outside = form == 2;
        if (form == 3) way.setup.options.reduce_once = true;
        SCOPED_TRACE(absl::StrCat("ranks ", split.pairs.size(), ", chunks of the last ",
                                  split.chunks.back(), ", form ", form, ", reduction ",
                                  static_cast<int>(reduction)));
        const Outcome got = RunOn(way);
        EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
        ExpectClose(got.gradients, want.gradients);
      }
    }
  }
}

TEST(CachedStepTest, StagesAndSyncsGiveTheSame) {
  const Outcome want = Joined();
  for (const Stage& stage : {kDataParallel, kZero1, kZero2, kZero3}) {
    for (const WindowSync sync : {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast}) {
      for (const CachedReduction reduction :
           {CachedReduction::kEachChunk, CachedReduction::kOncePerStep}) {
        Way way{.pairs = {5, 4}, .chunks = {3, 1}, .reduction = reduction, .sync = sync};
        way.setup.options.stage = stage;
        way.keeps_parameters = true;
        const Outcome got = RunOn(way);
        ExpectClose(got.gradients, want.gradients);
      }
    }
  }
}

TEST(CachedStepTest, TwoOnOneTapeGoOnCountingCalls) {
  const Outcome want = Joined();
  for (const bool once : {false, true}) {
    const auto reduction = once ? CachedReduction::kOncePerStep : CachedReduction::kEachChunk;
    for (const bool reduce_once : {false, true}) {
      Way way{.pairs = {5, 4, 0}, .chunks = {3, 1, 0}, .reduction = reduction, .apart = true};
      way.setup.options.reduce_once = reduce_once;
      ExpectClose(RunOn(way).gradients, want.gradients);
    }
  }
}

TEST(CachedStepTest, ABareBackwardLeavesWholeGradients) {
  const Outcome want = Joined();
  for (const bool once : {false, true}) {
    const auto reduction = once ? CachedReduction::kOncePerStep : CachedReduction::kEachChunk;
    RunRanks(3, [&](World& world) {
      const Outcome got =
          RunBare(world, {.pairs = {5, 0, 4}, .chunks = {3, 0, 2}, .reduction = reduction});
      EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
      ExpectClose(got.gradients, want.gradients);
    });
  }
}

// The gradients of a model whose scopes close in another order than its units were made in; with
// `list`, its blocks are one unit.
Whole GradientsInTurn(World& world, bool cached, bool list = false) {
  ShardModel model(2);
  if (list) FullyShard({&model.block(0), &model.block(1)}, world.mesh(), Sums());
  if (list) FullyShard(model, world.mesh(), Sums());
  if (cached && !list) ShardAll(model, world.mesh(), Sums());
  Initialize(model, world.device(), 1);
  const auto embed = [&](Range range) {
    const std::vector<int> order = {0, 1};
    return std::vector{model(InputRows(world.device(), range, 0), order),
                       model(InputRows(world.device(), range, 1), order)};
  };
  Tape tape;
  const Recording on(tape);
  std::vector<Variable> e;
  if (cached) {
    std::vector<std::vector<int64_t>> chunks(world.rank() == 0 ? 2 : 0);
    CachedStep step(model, {.reduction = CachedReduction::kOncePerStep});
    e = step.Embed(chunks, [&](int64_t k) { return embed({3 * k, 3 * k + 3}); });
  } else {
    e = embed({0, 6});
  }
  tape.Backward(RankingLoss({e[0], e[1]}, world.mesh()).value);
  ExpectSharded(model);
  return GradientsOf(model, cached ? &world.group() : nullptr);
}

TEST(CachedStepTest, OneReductionOfEachUnitIsInOneOrderOnAllRanks) {
  Whole want;
  RunRanks(1, [&](World& world) { want = GradientsInTurn(world, false); });
  RunRanks(2, [&](World& world) { ExpectClose(GradientsInTurn(world, true), want); });
}

TEST(CachedStepTest, ARankWithoutChunksGivesBackWhatItGathered) {
  Whole want;
  RunRanks(1, [&](World& world) { want = GradientsInTurn(world, false); });
  RunRanks(2, [&](World& world) { ExpectClose(GradientsInTurn(world, true, true), want); });
}

// Reduce-scatters of rank 0 in a step of 2 ranks.
int64_t Reductions(int chunks, CachedReduction reduction) {
  auto log = std::make_shared<CollectiveLog>();
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) {
    const bool first = group->rank() == 0;
    auto own = first ? log : std::make_shared<CollectiveLog>();
    return std::shared_ptr<ProcessGroup>(MakeRecordingGroup(std::move(group), own));
  };
  RunRanks(
      2,
      [&](World& world) {
        RunWay(world, {.pairs = {4, 5}, .chunks = {chunks, chunks}, .reduction = reduction});
      },
      options);
  return log->count(CollectiveOp::kReduceScatter);
}

TEST(CachedStepTest, ReducesOncePerUnitAndStepOrInEachChunk) {
  // The gather of the documents has one of its own. Each chunk calls the model twice: the root
  // twice, block 0 four times, block 1 twice.
  EXPECT_EQ(Reductions(3, CachedReduction::kOncePerStep), 1 + 3);
  EXPECT_EQ(Reductions(3, CachedReduction::kEachChunk), 1 + 3 * 8);
  EXPECT_EQ(Reductions(1, CachedReduction::kEachChunk), 1 + 8);
}

TEST(CachedStepTest, WhatChunksReadFromOutsideGetsItsGradient) {
  RunRanks(1, [](World& world) {
    RaggedRank rank(world, {.sharded = false});
    const Range all{0, 7};
    const std::vector<Range> ranges = Divide(all, 3);
    std::vector<std::vector<double>> gradients;
    for (const bool in_chunks : {false, true}) {
      const Variable gain = Variable::Leaf(TensorOf<double>(world.device(), {1, 2, -3}, {3}));
      const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = SamplesOf(all)});
      const Variable twice = Mul(gain, gain);
      const auto encode = [&](Range range) {
        std::vector<Variable> e = Embed(rank, range);
        return std::vector<Variable>{Mul(e[0], twice), Mul(e[1], gain)};
      };
      std::vector<Variable> e;
      if (in_chunks) {
        CachedStep cached(rank.model);
        e = cached.Embed({SamplesOf(ranges[0]), SamplesOf(ranges[1]), SamplesOf(ranges[2])},
                         [&](int64_t chunk) { return encode(ranges[static_cast<size_t>(chunk)]); });
      } else {
        e = encode(all);
      }
      rank.tape.Backward(RankingLoss({e[0], e[1]}, world.mesh()).value);
      gradients.push_back(gain.grad().ToHost<double>());
      rank.tape.Reset();
    }
    EXPECT_LT(RelativeError(gradients[1], gradients[0]), 1e-12);
    EXPECT_GT(std::abs(gradients[0][0]), 1e-3);
  });
}

// The gradients of a step whose documents are constants, or whose model is frozen but for block 1.
Whole GradientsBesideConstants(World& world, int chunks, bool frozen, int backwards) {
  RaggedRank rank(world, {});
  for (const Parameter& parameter : rank.model.parameters()) {
    const bool inside = parameter.name().find("block1") != std::string::npos;
    if (frozen && !inside) parameter.set_requires_grad(false);
  }
  const Range own = Divide({0, 7}, world.size())[static_cast<size_t>(world.rank())];
  const auto encode = [&](Range range) {
    std::vector<Variable> e = Embed(rank, range);
    const Variable fixed = InputRows(world.device(), range, 1);
    if (!frozen) e[1] = Slice(fixed, 1, 0, 3);
    return e;
  };
  const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = SamplesOf(own)});
  std::vector<Variable> e;
  if (chunks == 0) {
    e = encode(own);
  } else {
    const std::vector<Range> ranges = Divide(own, chunks);
    std::vector<std::vector<int64_t>> samples;
    for (const Range& range : ranges) samples.push_back(SamplesOf(range));
    e = CachedStep(rank.model).Embed(samples, [&encode, ranges](int64_t chunk) {
      return encode(ranges[static_cast<size_t>(chunk)]);
    });
  }
  const Variable loss = RankingLoss({e[0], e[1]}, world.mesh()).value;
  for (int k = 0; k < backwards; ++k) {
    rank.tape.Backward(loss, 1.0, {.retain = k + 1 < backwards});
  }
  return GradientsOf(rank.model, &world.group());
}

TEST(CachedStepTest, ConstantsAmongEmbeddingsAndFrozenParametersGetNoGradient) {
  for (const int ranks : {1, 2}) {
    for (const bool frozen : {false, true}) {
      RunRanks(ranks, [&](World& world) {
        const Whole want = GradientsBesideConstants(world, 0, frozen, 1);
        EXPECT_EQ(want.size(), frozen ? 3u : 7u);
        ExpectClose(GradientsBesideConstants(world, 3, frozen, 1), want);
      });
    }
  }
}

TEST(CachedStepTest, ARecordThatIsRetainedServesAnotherBackward) {
  RunRanks(2, [](World& world) {
    const Whole once = GradientsBesideConstants(world, 3, false, 1);
    Whole twice = once;
    for (auto& [name, values] : twice) {
      for (double& value : values) value *= 2.0;
    }
    ExpectClose(GradientsBesideConstants(world, 3, false, 2), twice);
  });
}

std::vector<std::string> TextsOf(int ranks, const std::function<void(RaggedRank&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  const auto run = [&](World& world) {
    RaggedRank rank(world, {});
    const std::string text = ErrorOf([&] { body(rank); });
    const std::lock_guard<std::mutex> lock(mutex);
    texts[static_cast<size_t>(world.rank())] = text;
  };
  ErrorOf([&] { RunRanks(ranks, run); });  // a group that was aborted ends with an error
  return texts;
}

TEST(CachedStepTest, ErrorsReachAllRanks) {
  const auto embed = [](RaggedRank& rank, int chunks, const CachedStep::Encode& encode) {
    const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = {0}});
    CachedStep cached(rank.model);
    const std::vector<Variable> e =
        cached.Embed(std::vector<std::vector<int64_t>>(static_cast<size_t>(chunks)), encode);
    rank.tape.Backward(RankingLoss({e[0], e[1]}, rank.world.mesh()).value);
  };
  const auto good = [](RaggedRank& rank) {
    return [&rank](int64_t chunk) { return Embed(rank, {chunk, chunk + 1}); };
  };
  for (const std::string& text :
       TextsOf(2, [&](RaggedRank& rank) { embed(rank, 0, good(rank)); })) {
    EXPECT_TRUE(Contains(text, "no rank has a chunk"));
  }
  // One rank throws in the first run of a chunk, or in the second.
  for (const bool in_recompute : {false, true}) {
    for (const std::string& text : TextsOf(2, [&](RaggedRank& rank) {
           embed(rank, 2, [&, in_recompute](int64_t chunk) {
             if (rank.world.rank() == 1 && chunk == 1 && InRecompute() == in_recompute) {
               ThrowInvalidArgument("the tokenizer broke");
             }
             return Embed(rank, {chunk, chunk + 1});
           });
         })) {
      EXPECT_TRUE(Contains(text, "the tokenizer broke"));
    }
  }
  for (const std::string& text : TextsOf(2, [&](RaggedRank& rank) {
         embed(rank, 1, [&](int64_t) {
           std::vector<Variable> e = Embed(rank, {0, 1});
           if (rank.world.rank() == 1) e[1] = Slice(e[1], 1, 0, 2);
           return e;
         });
       })) {
    EXPECT_TRUE(Contains(text, "rank 1 has chunks that give other numbers of embeddings, widths"));
  }
  for (const std::string& text : TextsOf(2, [&](RaggedRank& rank) {
         embed(rank, 1, [&](int64_t) {
           std::vector<Variable> e = Embed(rank, {0, 1});
           if (rank.world.rank() == 1) e[1] = Variable();
           return e;
         });
       })) {
    EXPECT_TRUE(Contains(text, "embedding 1 of chunk 0 is no float [rows, C]"));
  }
  for (const std::string& text : TextsOf(1, [&](RaggedRank& rank) {
         embed(rank, 2, [&](int64_t chunk) {
           std::vector<Variable> e = Embed(rank, {chunk, chunk + 1});
           if (InRecompute()) e[0] = Slice(e[0], 0, 0, 0);
           return e;
         });
       })) {
    EXPECT_TRUE(Contains(text, "recompute differs in chunk 1"));
  }
  for (const std::string& text :
       TextsOf(2, [&](RaggedRank& rank) { CachedStep(rank.model).Embed({{}}, good(rank)); })) {
    EXPECT_TRUE(Contains(text, "no Recording is on"));
  }
}

TEST(CachedStepTest, WindowsRefuseACollectiveLossOfSomeRanks) {
  for (const std::string& text : TextsOf(2, [&](RaggedRank& rank) {
         Accumulation accumulation(
             rank.model, {.micro_batches = 2, .losses = {{.name = "ranking", .collective = true}}});
         const auto count = static_cast<size_t>(1 + rank.world.rank());
         auto loader = LoaderFor(std::vector<Range>(count, Range{0, 1}));
         accumulation.Next(loader, [](const Range& range) { return range.pairs(); });
       })) {
    EXPECT_TRUE(Contains(text, "loss 'ranking' talks to the other ranks, and they hold 1, 2"));
  }
}

}  // namespace
}  // namespace sherd::testing
