// Units of several modules, tied weights, calls through other methods: trained as the plain model.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/shard/order.h"
#include "tests/shard/training.h"

namespace sherd::testing {
namespace {

constexpr int64_t kRows = 6;
constexpr int64_t kMicroBatches = 3;

// A linear layer whose weight is another module's.
class TiedHead : public Module {
 public:
  explicit TiedHead(Parameter tied) : weight(std::move(tied)) { RegisterTied(weight); }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](TiedHead& self, const Variable& x) { return Linear(x, self.weight); }, x);
  }
  const Parameter weight;
};

// table -> two blocks -> norm -> head; the last two can be left out and called from outside.
class HeadedModel : public Module {
 public:
  HeadedModel(int64_t vocabulary, bool tied)
      : vocabulary(vocabulary),
        table(vocabulary, ShardBlock::kChannels, Initializer::Normal(0.5), DType::kF64),
        norm(ShardBlock::kChannels, 1e-5, DType::kF64) {
    RegisterModule("table", table);
    RegisterModule("block0", block0);
    RegisterModule("block1", block1);
    RegisterModule("norm", norm);
    if (tied) {
      tied_head = std::make_unique<TiedHead>(table.weight());
      RegisterModule("head", *tied_head);
    } else {
      own_head = std::make_unique<LinearLayer>(ShardBlock::kChannels, vocabulary,
                                               Initializer::Normal(0.4), DType::kF64);
      RegisterModule("head", *own_head);
    }
  }
  Variable operator()(const Variable& ids, bool skip_head = false) {
    return Call(
        *this,
        [](HeadedModel& self, const Variable& ids, bool skip_head) {
          const Variable hidden = self.block1(self.block0(self.table(ids)));
          return skip_head ? hidden : self.Head(hidden);
        },
        ids, skip_head);
  }
  Variable Head(const Variable& hidden) {
    const Variable normed = norm(hidden);
    return tied_head ? (*tied_head)(normed) : (*own_head)(normed);
  }
  Module& head() { return tied_head ? static_cast<Module&>(*tied_head) : *own_head; }

  const int64_t vocabulary;
  EmbeddingLayer table;
  ShardBlock block0;
  ShardBlock block1;
  RmsNormLayer norm;
  std::unique_ptr<LinearLayer> own_head;
  std::unique_ptr<TiedHead> tied_head;
};

// Token ids of one micro-batch.
Variable IdsOf(const Device& device, int64_t vocabulary, int rank, int step, int64_t micro = 0) {
  std::vector<int64_t> ids(kRows);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto seed = static_cast<uint64_t>(100 * step + 10 * micro + rank);
    ids[i] = Philox4x32(seed, i, 3)[0] % static_cast<uint32_t>(vocabulary);
  }
  return TensorOf<int64_t>(device, ids, {kRows});
}

// Squares of the logits' distance from 1: all rows of the head get a gradient.
Variable LogitLoss(const Variable& logits, const Device& device) {
  const int64_t n = logits.shape().numel();
  const Variable ones =
      TensorOf<double>(device, std::vector<double>(static_cast<size_t>(n), 1.0), {n});
  return Energy(Sub(Reshape(logits, {n}), ones));
}

enum class Grouping { kAlone, kListed, kListedWithTable };

Recipe<HeadedModel> HeadedRecipe(Grouping grouping, bool tied, const FullyShardOptions& options,
                                 int64_t vocabulary = 9, int64_t micro_batches = 1) {
  return {.make = [=] { return std::make_unique<HeadedModel>(vocabulary, tied); },
          .shard =
              [=](HeadedModel& model, const Mesh& mesh) {
                FullyShard(model.block0, mesh, Sums(options));
                FullyShard(model.block1, mesh, Sums(options));
                if (grouping == Grouping::kListed) {
                  FullyShard({&model.norm, &model.head()}, mesh, Sums(options));
                } else if (grouping == Grouping::kListedWithTable) {
                  FullyShard({&model.table, &model.norm, &model.head()}, mesh, Sums(options));
                } else {
                  FullyShard(model.table, mesh, Sums(options));
                  FullyShard(model.norm, mesh, Sums(options));
                  FullyShard(model.head(), mesh, Sums(options));
                }
                FullyShard(model, mesh, Sums());
              },
          .loss =
              [=](HeadedModel& model, const Device& device, int rank, int step) {
                Variable sum;
                for (int64_t micro = 0; micro < micro_batches; ++micro) {
                  const Variable ids = IdsOf(device, vocabulary, rank, step, micro);
                  const Variable loss = LogitLoss(model(ids), device);
                  sum = sum.defined() ? Add(sum, loss) : loss;
                }
                return sum;
              }};
}

// The forward without the head, then the head in chunks with a backward each, then the rest.
double BackwardInChunks(
    HeadedModel& model, Tape& tape, const Device& device, const Variable& ids,
    const std::function<void(int)>& after_chunk = [](int) {}) {
  constexpr int kChunks = 3;
  double sum = 0.0;
  {
    const Recording on(tape);
    const Variable hidden = model(ids, /*skip_head=*/true);
    const Variable leaf = Variable::Leaf(hidden.value());
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const Variable rows = Slice(leaf, 0, chunk * kRows / kChunks, (chunk + 1) * kRows / kChunks);
      const Variable loss = LogitLoss(model.Head(rows), device);
      tape.Backward(loss);
      sum += ScalarOf(loss);
      after_chunk(chunk);
    }
    tape.Backward({hidden}, {leaf.grad()});
  }
  tape.Reset();
  return sum;
}

const FullyShardOptions kOptions[] = {{}, {.reshard_after_forward = false}, {.park = 2}};

TEST(FsdpGroups, ListsOfModulesTrainAsUnitsOfTheirOwn) {
  for (const FullyShardOptions& options : kOptions) {
    for (const bool tied : {false, true}) {
      for (Grouping grouping : {Grouping::kAlone, Grouping::kListed, Grouping::kListedWithTable}) {
        SCOPED_TRACE(absl::StrCat("grouping ", static_cast<int>(grouping), tied ? ", tied" : ""));
        for (int ranks : {1, 2}) {
          if (options.park > ranks) continue;
          ExpectTrains(ranks, HeadedRecipe(grouping, tied, options));
        }
      }
    }
  }
}

// Groupings whose head can be called outside the root's call: its weight is not the root's.
std::vector<std::pair<Grouping, bool>> StandaloneHeads() {
  return {{Grouping::kAlone, false},
          {Grouping::kListed, false},
          {Grouping::kListedWithTable, false},
          {Grouping::kListedWithTable, true}};
}

TEST(FsdpGroups, TheHeadInChunksWithABackwardEach) {
  for (const FullyShardOptions& options : kOptions) {
    for (const auto& [grouping, tied] : StandaloneHeads()) {
      SCOPED_TRACE(absl::StrCat("grouping ", static_cast<int>(grouping), tied ? ", tied" : ""));
      Recipe<HeadedModel> recipe = HeadedRecipe(grouping, tied, options);
      recipe.run = [](HeadedModel& model, Tape& tape, const Device& device, int rank, int step) {
        return BackwardInChunks(model, tape, device, IdsOf(device, model.vocabulary, rank, step));
      };
      ExpectTrains(2, recipe);
    }
  }
}

// "d" is the unit of the norm and the head, whose calls follow each other.
TEST(FsdpGroups, AListIsGatheredForItsCallsTogetherAndReducedOnce) {
  RunRanks(2, [](World& world) {
    const Recipe<HeadedModel> recipe = HeadedRecipe(Grouping::kListed, false, {.prefetch = 0});
    HeadedModel model(9, /*tied=*/false);
    recipe.shard(model, world.mesh());
    Initialize(model, world.device(), 1);
    Order order(model);
    Tape tape;
    const Variable ids = IdsOf(world.device(), 9, world.rank(), 0);
    {
      const Recording on(tape);
      const Variable loss = LogitLoss(model(ids), world.device());
      EXPECT_EQ(order.Take(), "Fr Ur F0 U0 R0 F1 U1 R1 Fd Ud Fd");
      tape.Backward(loss);
      EXPECT_EQ(order.Take(), "Rd Br Bd Ud Bd Pd Rd B1 U1 P1 R1 B0 U0 P0 R0 Pr Rr");
    }
    tape.Reset();
    // In chunks, from one gather; the root starts that of block0 ahead this time.
    for (const Parameter& p : model.parameters()) p.MutableLocal();
    std::string chunks[3];
    BackwardInChunks(model, tape, world.device(), ids,
                     [&](int chunk) { chunks[chunk] = order.Take(); });
    EXPECT_EQ(chunks[0], "Fr Ur U0 F0 R0 F1 U1 R1 Fd Ud Fd Bd Bd Pd");
    EXPECT_EQ(chunks[1], "Fd Fd Bd Bd Pd");
    EXPECT_EQ(chunks[2], chunks[1]);
    EXPECT_EQ(order.Take(), "Rd Br B1 U1 P1 R1 B0 U0 P0 R0 Pr Rr");
  });
}

TEST(FsdpGroups, ChunksOfSeveralMicroBatchesSynchronisedLast) {
  for (const auto& [grouping, tied] : StandaloneHeads()) {
    for (const GradientSync before_last : {GradientSync::kNone, GradientSync::kCutOnly}) {
      SCOPED_TRACE(absl::StrCat("grouping ", static_cast<int>(grouping), tied ? ", tied" : ""));
      Recipe<HeadedModel> recipe = HeadedRecipe(grouping, tied, {}, 9, kMicroBatches);
      recipe.run = [=](HeadedModel& model, Tape& tape, const Device& device, int rank, int step) {
        double sum = 0.0;
        for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
          SetGradientSync(model, micro + 1 == kMicroBatches ? GradientSync::kFull : before_last);
          sum += BackwardInChunks(model, tape, device,
                                  IdsOf(device, model.vocabulary, rank, step, micro));
        }
        return sum;
      };
      ExpectTrains(2, recipe);
      recipe.inside = 2;
      ExpectTrains(4, recipe);
    }
  }
}

TEST(FsdpGroups, AListStaysGatheredThroughTheChunksWhenToldTo) {
  for (const auto& [grouping, tied] : StandaloneHeads()) {
    if (grouping == Grouping::kAlone) continue;
    SCOPED_TRACE(absl::StrCat("grouping ", static_cast<int>(grouping), tied ? ", tied" : ""));
    Recipe<HeadedModel> recipe = HeadedRecipe(grouping, tied, {});
    recipe.run = [](HeadedModel& model, Tape& tape, const Device& device, int rank, int step) {
      Unit* const unit = UnitOf(model.head());
      const int64_t before = unit->gathers();
      const bool with_table = unit == UnitOf(model.table);
      SetReshardAfterForward(model.head(), false);
      SetReshardAfterBackward(model.head(), false);
      const double loss = BackwardInChunks(
          model, tape, device, IdsOf(device, model.vocabulary, rank, step),
          [&](int chunk) { EXPECT_TRUE(unit->unsharded()) << "after chunk " << chunk; });
      // All of the step from one gather: of the table, or of the first chunk.
      EXPECT_EQ(unit->gathers() - before, 1) << (with_table ? "with the table" : "");
      SetReshardAfterForward(model.head(), true);
      SetReshardAfterBackward(model.head(), true);
      Reshard(model.head());
      for (const Unit* each : UnitsOf(model)) EXPECT_FALSE(each->unsharded()) << each->name();
      return loss;
    };
    ExpectTrains(2, recipe);
  }
}

TEST(FsdpGroups, AHeadThatNeverRanHasNoGradientAndTheRestHas) {
  for (const Grouping grouping : {Grouping::kAlone, Grouping::kListed}) {
    SCOPED_TRACE(static_cast<int>(grouping));
    Recipe<HeadedModel> recipe = HeadedRecipe(grouping, false, {});
    // Two forwards before one backward.
    recipe.loss = [](HeadedModel& model, const Device& device, int rank, int step) {
      const Variable a = model(IdsOf(device, model.vocabulary, rank, step), true);
      return Add(Energy(a), Energy(model(IdsOf(device, model.vocabulary, rank, step, 1), true)));
    };
    recipe.after_backward = [](HeadedModel& model, int) {
      EXPECT_FALSE(model.own_head->weight().local_grad().defined());
      EXPECT_EQ(UnitOf(model.head())->gathers(), 0);
      EXPECT_EQ(UnitOf(model.head())->reductions(), 0);
      EXPECT_TRUE(model.block1.up.weight().local_grad().defined());
    };
    ExpectTrains(2, recipe);
  }
}

TEST(FsdpGroups, EveryRowOfATiedTableIsTrainedHoweverItsRowsAreCut) {
  for (int ranks : {1, 2, 3, 4}) {
    for (const Grouping grouping : {Grouping::kAlone, Grouping::kListedWithTable}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, grouping ", static_cast<int>(grouping)));
      const Recipe<HeadedModel> recipe = HeadedRecipe(grouping, true, {}, 4 * ranks + 1);
      Recipe<HeadedModel> none = recipe;
      none.steps = 0;
      const std::vector<double> first = TrainPlain(none, ranks).values.at("table.weight");
      const Trained want = TrainPlain(recipe, ranks);
      RunRanks(ranks, [&](World& world) {
        const Trained got = TrainSharded(recipe, world);
        ExpectSameTraining(got, want);
        const std::vector<double>& last = got.values.at("table.weight");
        for (size_t i = 0; i < last.size(); ++i) EXPECT_NE(last[i], first[i]) << "element " << i;
      });
    }
  }
}

TEST(FsdpGroups, ATiedWeightOfTwoUnitsBelongsToTheirCommonAncestor) {
  RunRanks(2, [](World& world) {
    HeadedModel model(9, /*tied=*/true);
    HeadedRecipe(Grouping::kAlone, true, {}).shard(model, world.mesh());
    EXPECT_EQ(UnitOf(model.table)->parameters(), 0);
    EXPECT_EQ(UnitOf(model.head())->parameters(), 0);
    EXPECT_EQ(UnitOf(model)->parameters(), 1);
    EXPECT_EQ(UnitOf(model)->layout().full_bytes(), 9 * ShardBlock::kChannels * 8 + 8)
        << "45 elements in two pieces of 23";
  });
}

// A module whose forward is called by another name, without arguments, and whose other parameter is
// read from outside.
class Oddly : public Module {
 public:
  Oddly() : inner(4, 4, Initializer::Normal(0.5), DType::kF64) {
    square = RegisterParameter("square", {4, 4}, Initializer::Normal(0.5), DType::kF64);
    RegisterModule("inner", inner);
  }
  Variable Features() {
    return Call(*this, [](Oddly& self) { return self.inner(self.square); });
  }
  Parameter square;
  LinearLayer inner;
};

TEST(FsdpGroups, OtherMethodsCallsWithoutArgumentsAndReadsFromOutside) {
  const Recipe<Oddly> recipe{
      .shard =
          [](Oddly& model, const Mesh& mesh) {
            FullyShard(model.inner, mesh, Sums());
            FullyShard(model, mesh, Sums());
          },
      .loss =
          [](Oddly& model, const Device& device, int rank, int step) {
            const Variable x =
                NormalTensor(device, DType::kF64, {4, 4}, static_cast<uint64_t>(7 * step + rank));
            const Variable loss = Energy(Sub(model.Features(), x));
            std::optional<UnitScope> root, inner;
            if (UnitOf(model) != nullptr) {
              root.emplace(model);
              inner.emplace(model.inner);
            }
            return Add(loss, Energy(Mul(model.square, model.inner.weight())));
          },
      .after_backward =
          [](Oddly& model, int) {
            for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded());
          }};
  for (int ranks : {1, 2, 3}) ExpectTrains(ranks, recipe);
}

TEST(FsdpGroups, ARootWithoutParameters) {
  const Recipe<ShardModel> recipe{
      .shard =
          [](ShardModel& model, const Mesh& mesh) {
            for (auto& block : model.blocks) FullyShard(*block, mesh, Sums());
            FullyShard(model.head, mesh, Sums());
            FullyShard(model, mesh, Sums());
            EXPECT_EQ(UnitOf(model)->parameters(), 0);
          },
      .loss =
          [](ShardModel& model, const Device& device, int rank, int step) {
            return Energy(model(InputOf(device, rank, static_cast<uint64_t>(step)), {2, 0, 1}));
          }};
  for (int ranks : {1, 2}) ExpectTrains(ranks, recipe);
}

}  // namespace
}  // namespace sherd::testing
