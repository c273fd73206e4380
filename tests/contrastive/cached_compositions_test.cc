// Cached steps on meshes of two axes, in every stage, in 16 bits, in windows of several
// micro-batches, with clipping and with an optimizer in the backward: against the joined batch in a
// plain step, or the plain step of the same precision.

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/sgd.h"
#include "sherd/shard/cached_step.h"
#include "sherd/shard/optimizer_in_backward.h"
#include "tests/contrastive/ways.h"

namespace sherd::testing {
namespace {

struct NamedStage {
  const char* name;
  Stage stage;
  bool keeps_parameters;
};

const NamedStage kStages[] = {{"zero 1", kZero1, true},
                              {"zero 2", kZero2, true},
                              {"zero 3 in each copy", kZero3, false},
                              {"hybrid optimizer", kHybridOptimizer, false},
                              {"zero 3 everywhere", kZero3Everywhere, false}};
constexpr WindowSync kSyncs[] = {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast};
constexpr CachedReduction kReductions[] = {CachedReduction::kEachChunk,
                                           CachedReduction::kOncePerStep};

// Four ranks in two copies, one of them without pairs, each with another number of chunks.
Way OnTwoCopies(const NamedStage& stage) {
  Way way{.pairs = {3, 0, 4, 2}, .chunks = {2, 0, 3, 1}};
  way.inside = 2;
  way.setup.options.stage = stage.stage;
  way.keeps_parameters = stage.keeps_parameters;
  return way;
}

// Calls `body` with every pair of stage and reduction, and of reduction and sync.
template <typename Body>
void ForAllWays(const Body& body) {
  size_t k = 0;
  for (const NamedStage& stage : kStages) {
    for (const CachedReduction reduction : kReductions) {
      Way way = OnTwoCopies(stage);
      way.sync = kSyncs[k++ % std::size(kSyncs)];
      way.reduction = reduction;
      SCOPED_TRACE(absl::StrCat(stage.name, ", sync ", static_cast<int>(way.sync), ", reduction ",
                                static_cast<int>(reduction)));
      body(way);
    }
  }
}

TEST(CachedCompositionsTest, AMeshOfTwoAxesGivesTheJoinedBatch) {
  const Outcome want = Joined();
  bool checkpoint = false;
  ForAllWays([&](Way way) {
    way.setup.checkpoint = checkpoint = !checkpoint;
    const Outcome got = RunOn(way);
    EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
    ExpectClose(got.gradients, want.gradients);
  });
}

// Three micro-batches, of 9, 4 and 3 pairs; each ranks its own pairs alone.
const Way kPlainMicroBatches{
    .pairs = {9}, .chunks = {0}, .setup = {.sharded = false}, .more = {{4}, {3}}};

TEST(CachedCompositionsTest, SeveralInOneWindowAddUp) {
  const Outcome want = RunOn(kPlainMicroBatches);
  ForAllWays([&](Way way) {
    // Ranks without pairs in some of them: with chunks of no rows, or without chunks.
    way.more = {{1, 0, 0, 3}, {0, 0, 3, 0}};
    const Outcome got = RunOn(way);
    EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
    ExpectClose(got.gradients, want.gradients);
  });
  for (const CachedReduction reduction : kReductions) {
    const Outcome got = RunOn({.pairs = {5, 4},
                               .chunks = {3, 2},
                               .reduction = reduction,
                               .apart = true,
                               .more = {{2, 2}, {1, 2}}});
    ExpectClose(got.gradients, want.gradients);
  }
}

TEST(CachedCompositionsTest, ClippingSeesTheWholeGradients) {
  const Outcome plain = RunOn(kPlainMicroBatches);
  const double norm = PlainNorm(plain.gradients, NormType::kTwo);
  const double clip = norm / 3.0;
  Whole want = plain.gradients;
  for (auto& [name, values] : want) {
    for (double& value : values) value *= clip / (norm + 1e-6);
  }
  const auto check = [&](Way way) {
    way.clip = clip;
    const Outcome got = RunOn(way);
    EXPECT_NEAR(got.norm, norm, 1e-12 * norm);
    ExpectClose(got.gradients, want);
  };
  for (const CachedReduction reduction : kReductions) {
    check({.pairs = {9}, .chunks = {4}, .reduction = reduction, .more = {{4}, {3}}});
    check({.pairs = {5, 4}, .chunks = {3, 1}, .reduction = reduction, .more = {{0, 4}, {2, 1}}});
  }
  ForAllWays([&](Way way) {
    way.more = {{1, 0, 0, 3}, {0, 0, 3, 0}};
    check(way);
  });
}

// The parameters after one step of an optimizer that runs in the backward, or after it.
Whole AfterStep(World& world, const Way& way, bool in_backward) {
  const Mesh mesh = MeshOf(world, way);
  RaggedRank rank(world, way.setup, &mesh);
  const auto make = [](std::vector<Parameter> parameters) {
    return std::make_unique<Sgd>(std::move(parameters), SgdOptions{.learning_rate = 0.1});
  };
  OptimizerInBackward inside(rank.model, make);
  inside.set_learning_rate(0.1);
  const std::unique_ptr<Optimizer> behind = make(rank.model.parameters());
  AccumulationOptions options = OptionsOf(way);
  if (in_backward) options.in_backward = &inside;
  Accumulation accumulation(rank.model, options);
  auto window = NextWindow(accumulation, world, way);
  RunMicroBatches(rank, way, *window);
  if (const auto context = ContextOf(rank.model)) {
    // The backward has asked for the steps of all units; each is made when its reduction has ended.
    context->WaitReductions(0);
    context->RunWhole();
  }
  for (Unit* unit : UnitsOf(rank.model)) {
    EXPECT_EQ(unit->HeldGradient(0).defined(), !in_backward) << unit->name();
  }
  window->Finish(in_backward ? static_cast<Optimizer&>(inside) : *behind, 0.1);
  return ValuesOf(rank.model, way.setup.sharded ? &world.group() : nullptr);
}

Whole AfterStepOn(const Way& way, bool in_backward) {
  Whole values;
  RunRanks(static_cast<int>(way.pairs.size()), [&](World& world) {
    const Whole mine = AfterStep(world, way, in_backward);
    if (world.rank() == 0) values = mine;
  });
  return values;
}

TEST(CachedCompositionsTest, AnOptimizerInBackwardStepsEachUnitOnce) {
  const Way joined{.pairs = {9}, .chunks = {0}, .setup = {.sharded = false}};
  const Whole want = AfterStepOn(joined, false);
  const Whole want_window = AfterStepOn(kPlainMicroBatches, false);
  for (const CachedReduction reduction : kReductions) {
    for (const std::vector<int>& chunks : {std::vector{3, 2}, std::vector{1, 3}}) {
      Way way{.pairs = {5, 4}, .chunks = chunks, .reduction = reduction};
      ExpectClose(AfterStepOn(way, true), want);
      way.more = {{0, 4}, {2, 1}};
      ExpectClose(AfterStepOn(way, true), want_window);
    }
  }
  ForAllWays([&](Way way) {
    way.more = {{1, 0, 0, 3}, {0, 0, 3, 0}};
    ExpectClose(AfterStepOn(way, true), want_window);
  });
}

// Pairs with hard negatives, which are embedded in an Embed of their own: rows of their own number,
// with samples of their own for dropout. Chunks 0: plain, where there are rows.
struct Hard {
  Cut pairs, negatives;
  std::vector<int> chunks, negative_chunks;
  bool sharded = true;
  CachedReduction reduction = CachedReduction::kEachChunk;
};

// The embeddings of the rows of one side, of which queries and documents are 0 and 1.
Variable EmbedSide(RaggedRank& rank, Recording& on, Range own, int side, int chunks,
                   CachedReduction reduction) {
  const auto embed = [&rank, side](Range range) {
    return rank.model(InputRows(rank.world.device(), range, side));
  };
  if (chunks == 0 && own.pairs() > 0) {
    on.SetSamples(SamplesOf(own));
    return embed(own);
  }
  const std::vector<Range> ranges = Divide(own, chunks);
  std::vector<std::vector<int64_t>> samples;
  for (const Range& range : ranges) samples.push_back(SamplesOf(range));
  CachedStep cached(rank.model, {.reduction = reduction});
  return cached.Embed(samples, [embed, ranges](int64_t chunk) {
    return std::vector{embed(ranges[static_cast<size_t>(chunk)])};
  })[0];
}

// The sums of the gradients over the ranks, that of the learnable temperature too.
Whole HardGradients(const Hard& way) {
  Whole gradients;
  RunRanks(static_cast<int>(way.pairs.size()), [&](World& world) {
    RaggedRank rank(world, {.sharded = way.sharded});
    const auto at = static_cast<size_t>(world.rank());
    const auto own = [&](const Cut& cut, int64_t first) {
      const int64_t begin = first + Before(cut, world.rank());
      return Range{begin, begin + cut[at]};
    };
    const auto ids = [&](Range range, int64_t period) {
      std::vector<int64_t> all;
      for (int64_t i = range.begin; i < range.end; ++i) all.push_back(i % period);
      return TensorOf<int64_t>(world.device(), all, {range.pairs()});
    };
    const Range pairs = own(way.pairs, 0), negatives = own(way.negatives, 100);
    Recording on(rank.tape, {.seed = 5, .step = 1});
    RankingEmbeddings e;
    e.queries = EmbedSide(rank, on, pairs, 0, way.chunks[at], way.reduction);
    e.documents = EmbedSide(rank, on, pairs, 1, way.chunks[at], way.reduction);
    e.negatives = EmbedSide(rank, on, negatives, 2, way.negative_chunks[at], way.reduction);
    e.log_scale = Variable::Leaf(TensorOf<double>(world.device(), {0.5}, {1}));
    const LossSum loss = RankingLoss(
        e, world.mesh(), {.symmetric = true, .matryoshka = {{2, 0.5}, {3, 1.0}}},
        {.queries = ids(pairs, 7), .documents = ids(pairs, 4), .negatives = ids(negatives, 5)});
    rank.tape.Backward(loss.value, world.size());  // the units divide the seed by as much
    Whole mine = GradientsOf(rank.model, way.sharded ? &world.group() : nullptr);
    double scale = e.log_scale.grad().ToHost<double>()[0];
    world.group().AllReduce(&scale, 1, DType::kF64);
    mine["log_scale"] = {scale};
    if (world.rank() == 0) gradients = mine;
  });
  return gradients;
}

TEST(CachedCompositionsTest, HardNegativesAndALearnableTemperatureGoWithIt) {
  const Whole want = HardGradients({{9}, {6}, {0}, {0}, /*sharded=*/false});
  for (const CachedReduction reduction : kReductions) {
    for (Hard way :
         {Hard{{9}, {6}, {3}, {2}}, Hard{{5, 4}, {6, 0}, {2, 3}, {2, 0}},
          Hard{{4, 0, 5}, {2, 3, 1}, {2, 0, 3}, {1, 3, 1}}, Hard{{0, 9}, {6, 0}, {0, 4}, {1, 0}}}) {
      way.reduction = reduction;
      ExpectClose(HardGradients(way), want);
    }
  }
}

// A model with f32 masters: two layers with dropout between, and a head.
class Tower : public Module {
 public:
  class Layer : public Module {
   public:
    Layer()
        : norm(ShardBlock::kChannels),
          linear(ShardBlock::kChannels, ShardBlock::kChannels, Initializer::Normal(0.4)) {
      RegisterModule("norm", norm);
      RegisterModule("linear", linear);
    }
    Variable operator()(const Variable& x) {
      return Call(
          *this,
          [](Layer& self, const Variable& x) {
            return Add(x, Dropout(Silu(self.linear(self.norm(x))), 0.25));
          },
          x);
    }
    RmsNormLayer norm;
    LinearLayer linear;
  };
  Tower() : head(ShardBlock::kChannels, 4, Initializer::Normal(0.4)) {
    RegisterModule("first", first);
    RegisterModule("second", second);
    RegisterModule("head", head);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Tower& self, const Variable& x) { return self.head(self.second(self.first(x))); },
        x);
  }
  Layer first, second;
  LinearLayer head;
};

struct TowerStep {
  MixedPrecision precision;
  Cut pairs;
  std::vector<int> chunks;  // 0: a plain step
  CachedReduction reduction = CachedReduction::kEachChunk;
  bool checkpoint = false;
};

// The sums of the gradients over the ranks.
Whole TowerGradients(const TowerStep& step) {
  Whole gradients;
  RunRanks(static_cast<int>(step.pairs.size()), [&](World& world) {
    Tower tower;
    for (Tower::Layer* layer : {&tower.first, &tower.second}) {
      if (step.checkpoint) Checkpoint(*layer);
      FullyShard(*layer, world.mesh(), Sums({.precision = step.precision}));
    }
    FullyShard(tower, world.mesh(), Sums({.precision = step.precision}));
    Initialize(tower, world.device(), 1);
    const auto embed = [&world, &tower](Range range) {
      std::vector<Variable> sides;
      for (const int side : {0, 1}) {
        sides.push_back(tower(Cast(InputRows(world.device(), range, side), DType::kF32)));
      }
      return sides;
    };
    const int64_t begin = Before(step.pairs, world.rank());
    const auto at = static_cast<size_t>(world.rank());
    const Range own{begin, begin + step.pairs[at]};
    Tape tape;
    const Recording on(tape, {.seed = 5, .step = 1, .samples = SamplesOf(own)});
    std::vector<Variable> e;
    if (step.chunks[at] == 0) {
      e = embed(own);
    } else {
      const std::vector<Range> ranges = Divide(own, step.chunks[at]);
      std::vector<std::vector<int64_t>> samples;
      for (const Range& range : ranges) samples.push_back(SamplesOf(range));
      CachedStep cached(tower, {.reduction = step.reduction});
      e = cached.Embed(samples, [embed, ranges](int64_t chunk) {
        return embed(ranges[static_cast<size_t>(chunk)]);
      });
    }
    EXPECT_EQ(e[0].dtype(), step.precision.parameters.value_or(DType::kF32));
    tape.Backward(RankingLoss({e[0], e[1]}, world.mesh(), {.temperature = 0.5}).value);
    const Whole mine = GradientsOf(tower, &world.group());
    if (world.rank() == 0) gradients = mine;
  });
  return gradients;
}

// The largest |got - want| / |want| of all parameters.
double MostApart(const Whole& got, const Whole& want) {
  double most = 0.0;
  for (const auto& [name, values] : want) {
    most = std::max(most, RelativeError(got.at(name), values));
  }
  return most;
}

TEST(CachedCompositionsTest, InSixteenBitsTheGradientsAreThoseOfThePlainStep) {
  const Cut pairs = {5, 4};
  const Whole wide = TowerGradients({.pairs = pairs, .chunks = {0, 0}});
  for (const MixedPrecision& precision :
       {kBf16, MixedPrecision{.parameters = DType::kF16},
        MixedPrecision{.parameters = DType::kBF16, .reduce = DType::kBF16}}) {
    const Whole plain = TowerGradients({.precision = precision, .pairs = pairs, .chunks = {0, 0}});
    EXPECT_GT(MostApart(plain, wide), 1e-4);  // 16 bits they are
    for (const bool checkpoint : {false, true}) {
      EXPECT_EQ(
          TowerGradients(
              {.precision = precision, .pairs = pairs, .chunks = {1, 1}, .checkpoint = checkpoint}),
          plain);
    }
    // Each row has the bits it has in a plain step; only sums over the rows of a chunk are f32 sums
    // of their own. A wire of 16 bits rounds each of those.
    const double tolerance = precision.reduce ? 2e-2 : 1e-6;
    for (const CachedReduction reduction : kReductions) {
      const Whole chunks = TowerGradients({.precision = precision,
                                           .pairs = pairs,
                                           .chunks = {3, 2},
                                           .reduction = reduction,
                                           .checkpoint = true});
      EXPECT_LT(MostApart(chunks, plain), tolerance);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
