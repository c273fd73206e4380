#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "sherd/shard/cached_step.h"
#include "sherd/shard/ranking_loss.h"
#include "tests/contrastive/pairs.h"
#include "tests/shard/ragged.h"

// One step of the ranking loss, however its pairs lie on ranks, in chunks and in micro-batches.
namespace sherd::testing {

// Consecutive pairs, as rows of one call of the model.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t pairs() const { return end - begin; }
};

inline std::vector<int64_t> SamplesOf(Range range) {
  std::vector<int64_t> samples;
  for (int64_t i = range.begin; i < range.end; ++i) samples.push_back(i);
  return samples;
}

// What the model is given for a query (side 0) or a document (side 1).
inline Variable InputRows(const Device& device, Range range, int side) {
  std::vector<double> x;
  for (int64_t i = range.begin; i < range.end; ++i) {
    for (int64_t c = 0; c < ShardBlock::kChannels; ++c) {
      x.push_back(std::sin(static_cast<double>(1 + 7 * i + 3 * c + 40 * side)));
    }
  }
  return TensorOf<double>(device, x, {range.pairs(), ShardBlock::kChannels});
}

inline std::vector<Variable> Embed(RaggedRank& rank, Range range) {
  const Device& device = rank.world.device();
  return {rank.model(InputRows(device, range, 0)), rank.model(InputRows(device, range, 1))};
}

// How the batch lies on the ranks: pairs of each, and in how many chunks it takes them. 0: as a
// plain step does.
struct Way {
  Cut pairs;
  std::vector<int> chunks;
  RaggedSetup setup = {};
  CachedReduction reduction = CachedReduction::kEachChunk;
  WindowSync sync = WindowSync::kCutEach;
  bool apart = false;             // queries and documents in an Embed each
  bool keeps_parameters = false;  // of a stage that does not cut them
  std::vector<Cut> more = {};     // the pairs of the window's other micro-batches
  int inside = 0;                 // ranks along the mesh's shard axis; 0: all
  double clip = 0.0;
};

// Parts of a range whose sizes differ by one at most.
inline std::vector<Range> Divide(Range all, int parts) {
  std::vector<Range> ranges;
  for (int k = 0; k < parts; ++k) {
    ranges.push_back(
        {all.begin + all.pairs() * k / parts, all.begin + all.pairs() * (k + 1) / parts});
  }
  return ranges;
}

struct Outcome {
  double loss = 0.0;
  double norm = 0.0;  // of the gradients, before clipping
  Whole gradients;
};

// The embeddings of this rank's pairs, cached or not.
inline std::vector<Variable> EmbedBatch(RaggedRank& rank, Range own, int chunks,
                                        CachedReduction reduction, bool apart = false) {
  if (chunks == 0 && own.pairs() > 0) return Embed(rank, own);
  const std::vector<Range> ranges = Divide(own, chunks);
  std::vector<std::vector<int64_t>> samples;
  for (const Range& range : ranges) samples.push_back(SamplesOf(range));
  CachedStep cached(rank.model, {.reduction = reduction});
  if (!apart) {
    return cached.Embed(samples, [&rank, ranges](int64_t chunk) {
      return Embed(rank, ranges[static_cast<size_t>(chunk)]);
    });
  }
  std::vector<Variable> both;
  for (const int side : {0, 1}) {
    both.push_back(cached.Embed(samples, [&rank, ranges, side](int64_t chunk) {
      const Range& range = ranges[static_cast<size_t>(chunk)];
      return std::vector{rank.model(InputRows(rank.world.device(), range, side))};
    })[0]);
  }
  return both;
}

// This rank's pairs of each micro-batch. Those of all ranks in one micro-batch are consecutive.
inline std::vector<Range> OwnRanges(World& world, const Way& way) {
  std::vector<Cut> cuts = {way.pairs};
  cuts.insert(cuts.end(), way.more.begin(), way.more.end());
  std::vector<Range> own;
  int64_t first = 0;
  for (const Cut& cut : cuts) {
    const int64_t begin = first + Before(cut, world.rank());
    own.push_back({begin, begin + cut[static_cast<size_t>(world.rank())]});
    first += Before(cut, world.size());
  }
  return own;
}

inline Mesh MeshOf(World& world, const Way& way) {
  return way.inside > 0 ? world.MakeMesh(way.inside) : world.mesh();
}

inline LossSum LossOf(RaggedRank& rank, Range range, const Way& way) {
  const int chunks = way.chunks[static_cast<size_t>(rank.world.rank())];
  const std::vector<Variable> e = EmbedBatch(rank, range, chunks, way.reduction, way.apart);
  return RankingLoss({e[0], e[1]}, MeshOf(rank.world, way), {.temperature = 0.5});
}

// Whether nothing of the model is gathered.
inline void ExpectSharded(const Module& model) {
  for (const Unit* unit : UnitsOf(model)) {
    EXPECT_FALSE(unit->full(0).resident()) << unit->name();
  }
}

// The micro-batches of a window, each with its backward. COLLECTIVE.
inline void RunMicroBatches(RaggedRank& rank, const Way& way, Window<Range>& window) {
  for (const Range& range : window) {
    const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = SamplesOf(range)});
    window.Backward(LossOf(rank, range, way));
  }
}

inline AccumulationOptions OptionsOf(const Way& way) {
  return {.micro_batches = 1 + static_cast<int64_t>(way.more.size()),
          .sync = way.sync,
          .losses = {{.name = "ranking", .collective = true}}};
}

inline std::optional<Window<Range>> NextWindow(Accumulation& accumulation, World& world,
                                               const Way& way) {
  auto loader = LoaderFor(OwnRanges(world, way));
  return accumulation.Next(loader, [](const Range& range) { return range.pairs(); });
}

// One window of one large batch. COLLECTIVE.
inline Outcome RunWay(World& world, const Way& way) {
  const Mesh mesh = MeshOf(world, way);
  RaggedRank rank(world, way.setup, &mesh);
  KeepStep optimizer(rank.model, &world.group());
  Accumulation accumulation(rank.model, OptionsOf(way));
  auto window = NextWindow(accumulation, world, way);
  RunMicroBatches(rank, way, *window);
  if (mesh.shard_size() > 1 && !way.keeps_parameters) ExpectSharded(rank.model);
  const StepResult result = window->Finish(optimizer, 1e-3, {.clip = way.clip});
  EXPECT_FALSE(optimizer.gradients.empty());
  return {result.loss, result.grad_norm, optimizer.gradients};
}

inline Outcome RunOn(const Way& way) {
  Outcome outcome;
  RunRanks(static_cast<int>(way.pairs.size()), [&](World& world) {
    const Outcome mine = RunWay(world, way);
    if (world.rank() == 0) outcome = mine;
  });
  return outcome;
}

// The joined batch of 9 pairs in a plain step of a plain model.
inline Outcome Joined() {
  return RunOn({.pairs = {9}, .chunks = {0}, .setup = {.sharded = false}});
}

}  // namespace sherd::testing
