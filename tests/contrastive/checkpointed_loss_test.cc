// Collectives inside checkpointed regions: the ranking loss, and modules that gather rows. Each is
// sent once for each forward and once for each backward, a recompute sends nothing, and gradients
// have the bits that they have without a checkpoint.

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/ops/activation.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/recording_group.h"
#include "sherd/shard/gather_rows.h"
#include "tests/contrastive/ways.h"

namespace sherd::testing {
namespace {

constexpr int64_t kColumns = 6;

// Where the checkpoints are.
enum class Around { kNothing, kRegion, kWithoutEarlyStop, kTwo, kThree };
constexpr Around kRegions[] = {Around::kRegion, Around::kWithoutEarlyStop, Around::kTwo,
                               Around::kThree};

// Runs `body`, which gives a LossSum, with checkpoints around it.
template <typename Fn>
LossSum RunAround(Around around, const Fn& body, const Variable& a, const Variable& b,
                  const Variable& c, const Variable& scale) {
  const auto once = [body](const Variable& a, const Variable& b, const Variable& c,
                           const Variable& scale) {
    return Checkpoint(CheckpointOptions{.wrong_order = WrongOrder::kAllow}, body, a, b, c, scale);
  };
  const auto twice = [once](const Variable& a, const Variable& b, const Variable& c,
                            const Variable& scale) {
    return Checkpoint(CheckpointOptions{.wrong_order = WrongOrder::kAllow}, once, a, b, c, scale);
  };
  const CheckpointOptions late{.early_stop = false, .wrong_order = WrongOrder::kAllow};
  switch (around) {
    case Around::kNothing:
      return body(a, b, c, scale);
    case Around::kRegion:
      return once(a, b, c, scale);
    case Around::kWithoutEarlyStop:
      return Checkpoint(late, body, a, b, c, scale);
    case Around::kTwo:
      return twice(a, b, c, scale);
    case Around::kThree:
      return Checkpoint(late, twice, a, b, c, scale);
  }
  return {};
}

// What one rank sent through one of the mesh's groups, and what it has in the end.
struct Trace {
  std::vector<std::string> calls;
  std::vector<std::vector<double>> results;
  friend bool operator==(const Trace&, const Trace&) = default;
};

// Runs ranks whose collectives for small agreements and losses are noted.
template <typename Body>
std::vector<Trace> TracesOf(int ranks, const Body& body) {
  std::vector<Trace> traces(static_cast<size_t>(ranks));
  std::vector<std::shared_ptr<CollectiveLog>> logs;
  for (int r = 0; r < ranks; ++r) logs.push_back(std::make_shared<CollectiveLog>());
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    return std::shared_ptr<ProcessGroup>(MakeRecordingGroup(std::move(group), logs[rank]));
  };
  RunRanks(
      ranks,
      [&](World& world) {
        const auto rank = static_cast<size_t>(world.rank());
        traces[rank].results = body(world);
        for (const CollectiveRecord& record : logs[rank]->records()) {
          if (record.group != "control") continue;
          traces[rank].calls.push_back(
              absl::StrCat(std::string(NameOf(record.op)), " ", record.bytes));
        }
      },
      options);
  return traces;
}

std::vector<double> GradientOf(const Variable& leaf) {
  const Tensor grad = leaf.grad();
  return grad.defined() ? DoublesOf(grad) : std::vector<double>();
}

// Whose pairs and negatives are on which rank, with which options.
struct Case {
  std::string name;
  Cut pairs, negatives;
  RankingOptions options = {};
  bool ids = false;
};

const Case kCases[] = {
    {"one rank", {5}, {2}, {.symmetric = true}},
    {"two ranks", {3, 2}, {0, 0}},
    {"ids and negatives", {3, 1, 4}, {2, 0, 1}, {.temperature = 0.4, .symmetric = true}, true},
    {"an empty rank", {4, 0, 2}, {0, 0, 2}, {.matryoshka = {{2, 0.5}, {6, 1.0}}}, true},
    {"one with negatives alone", {0, 5}, {3, 0}, {.normalize = false}}};

// The loss of embeddings that are computed inside the region too.
std::vector<std::vector<double>> RankInside(World& world, const Case& c, Around around) {
  const int rank = world.rank();
  const Device& device = world.device();
  Pairs batch =
      RandomPairs(Before(c.pairs, world.size()), Before(c.negatives, world.size()), kColumns);
  for (int64_t i = 0; c.ids && i < Before(c.pairs, world.size()); ++i) {
    batch.query_ids.push_back(i % 4);
    batch.document_ids.push_back(100 + i % 3);
  }
  for (int64_t m = 0; c.ids && m < Before(c.negatives, world.size()); ++m) {
    batch.negative_ids.push_back(101 + m);
  }
  const auto leaf = [&](const Matrix& all, const Cut& cut) {
    return Variable::Leaf(RowsTensor(device, PartOf(all, cut, rank), kColumns));
  };
  const Variable leaves[] = {leaf(batch.queries, c.pairs), leaf(batch.documents, c.pairs),
                             leaf(batch.negatives, c.negatives),
                             Variable::Leaf(TensorOf<double>(device, {0.75}, {1}))};
  const RankingIds ids{IdsTensor(device, batch.query_ids, c.pairs, rank),
                       IdsTensor(device, batch.document_ids, c.pairs, rank),
                       IdsTensor(device, batch.negative_ids, c.negatives, rank)};
  const Mesh mesh = world.mesh();
  const auto body = [mesh, c, ids](const Variable& a, const Variable& b, const Variable& n,
                                   const Variable& scale) {
    RankingEmbeddings e{Silu(a), Scale(b, 1.5), Silu(n), Mul(scale, scale)};
    return RankingLoss(e, mesh, c.options, ids);
  };
  Tape tape;
  const Recording on(tape);
  const LossSum loss = RunAround(around, body, leaves[0], leaves[1], leaves[2], leaves[3]);
  EXPECT_EQ(loss.items, c.pairs[static_cast<size_t>(rank)]);
  std::vector<std::vector<double>> results = {{loss.value.value().Item<double>()}};
  tape.Backward(loss.value, 0.25);
  for (const Variable& x : leaves) results.push_back(GradientOf(x));
  return results;
}

TEST(CheckpointedLossTest, ARankingLossInARegionSendsTheSameAndHasTheSameBits) {
  for (const Case& c : kCases) {
    const int ranks = static_cast<int>(c.pairs.size());
    const auto run = [&](Around around) {
      return TracesOf(ranks, [&](World& world) { return RankInside(world, c, around); });
    };
    const std::vector<Trace> plain = run(Around::kNothing);
    EXPECT_GE(plain[0].calls.size(), ranks > 1 ? 4u : 0u) << c.name;
    for (const Around around : kRegions) {
      SCOPED_TRACE(absl::StrCat(c.name, ", region ", static_cast<int>(around)));
      const std::vector<Trace> got = run(around);
      for (size_t r = 0; r < plain.size(); ++r) {
        EXPECT_EQ(got[r].calls, plain[r].calls);
        EXPECT_EQ(got[r].results, plain[r].results);
      }
    }
  }
}

TEST(CheckpointedLossTest, WhatALossSendsIsItsTableItsRowsAndTheirGradient) {
  const auto traces =
      TracesOf(2, [](World& world) { return RankInside(world, kCases[1], Around::kRegion); });
  // The loss' table of 13 numbers, the lengths of the gather of 3 and 2 documents, those rows and
  // their gradient: 3 of 6 columns, the most of one rank.
  EXPECT_EQ(traces[0].calls, (std::vector<std::string>{"all_gather 104", "all_gather 88",
                                                       "all_gather 144", "reduce_scatter 144"}));
}

// The embeddings of a sharded model with dropout and their loss, all in one region.
std::vector<std::vector<double>> ModelInside(World& world, Around around, bool apart) {
  RaggedRank rank(world, {.checkpoint = apart});
  const Cut cut = world.size() == 2 ? Cut{3, 2} : Cut{2, 0, 3};
  const int64_t begin = Before(cut, world.rank());
  const Range own{begin, begin + cut[static_cast<size_t>(world.rank())]};
  const Mesh mesh = world.mesh();
  RaggedModel* model = &rank.model;
  const auto body = [model, mesh](const Variable& a, const Variable& b, const Variable&,
                                  const Variable&) {
    return RankingLoss({(*model)(a), (*model)(b)}, mesh, {.temperature = 0.5});
  };
  const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = SamplesOf(own)});
  const Variable none(Tensor::Zeros(world.device(), DType::kF64, {1}));
  const LossSum loss = RunAround(around, body, InputRows(world.device(), own, 0),
                                 InputRows(world.device(), own, 1), none, none);
  std::vector<std::vector<double>> results = {{loss.value.value().Item<double>()}};
  rank.tape.Backward(loss.value);
  for (const auto& [name, values] : GradientsOf(rank.model, &world.group())) {
    results.push_back(values);
  }
  return results;
}

TEST(CheckpointedLossTest, AModelAndItsLossInOneRegionAreThoseOutside) {
  for (const int ranks : {2, 3}) {
    const auto run = [&](Around around, bool apart) {
      return TracesOf(ranks, [&](World& world) { return ModelInside(world, around, apart); });
    };
    const std::vector<Trace> plain = run(Around::kNothing, false);
    EXPECT_EQ(plain[0].results.size(), 8u);
    for (const Around around : kRegions) {
      for (const bool apart : {false, true}) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, region ", static_cast<int>(around)));
        const std::vector<Trace> got = run(around, apart);
        for (size_t r = 0; r < plain.size(); ++r) {
          EXPECT_EQ(got[r].calls, plain[r].calls);
          EXPECT_EQ(got[r].results, plain[r].results);
        }
      }
    }
  }
}

// A module that looks at the rows of all ranks: y = x W, less the rows of all ranks times their
// count, plus what all ranks have summed up.
class Mixing : public Module {
 public:
  explicit Mixing(Mesh mesh)
      : linear(kColumns, kColumns, Initializer::Normal(0.4), DType::kF64), mesh_(std::move(mesh)) {
    RegisterModule("linear", linear);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Mixing& self, const Variable& x) {
          const Variable y = Silu(self.linear(x));
          const GatheredRows all = AllGatherRows(y, self.mesh_);
          const Variable likeness = Matmul(y, Mul(all.rows, all.rows), {.transpose_b = true});
          const Variable total = AllReduceSum(Sum(Mul(likeness, likeness)), self.mesh_);
          return Mul(Matmul(likeness, all.rows), Exp(Scale(total, -1e-3)));
        },
        x);
  }
  LinearLayer linear;

 private:
  const Mesh mesh_;
};

std::vector<std::vector<double>> MixInside(World& world, bool checkpoint) {
  Mixing first(world.mesh()), second(world.mesh());
  for (Mixing* module : {&first, &second}) {
    if (checkpoint) Checkpoint(*module);
    FullyShard(*module, world.mesh(), Sums({.reshard_after_forward = true}));
    Initialize(*module, world.device(), 1);
  }
  const int64_t rows = 1 + 2 * world.rank();
  const Variable x = Variable::Leaf(NormalTensor(world.device(), DType::kF64, {rows, kColumns},
                                                 7 + static_cast<uint64_t>(world.rank()), 0.5));
  Tape tape;
  const Recording on(tape);
  const Variable loss = Energy(second(first(x)));
  tape.Backward(loss);
  std::vector<std::vector<double>> results = {{loss.value().Item<double>()}, GradientOf(x)};
  for (const Mixing* module : {&first, &second}) {
    results.push_back(GradientsOf(*module, &world.group()).begin()->second);
  }
  return results;
}

TEST(CheckpointedLossTest, AShardedModuleThatGathersRowsSendsNothingInItsRecompute) {
  const auto run = [](bool checkpoint) {
    return TracesOf(3, [&](World& world) { return MixInside(world, checkpoint); });
  };
  const std::vector<Trace> plain = run(false), got = run(true);
  // Lengths and rows, shapes and sum, twice; and twice the gradients of both.
  EXPECT_EQ(plain[0].calls.size(), 2u * 4u + 2u * 2u);
  for (size_t r = 0; r < plain.size(); ++r) {
    EXPECT_EQ(got[r].calls, plain[r].calls);
    EXPECT_EQ(got[r].results, plain[r].results);
  }
  EXPECT_GT(std::abs(plain[1].results[1][0]), 1e-6);
}

TEST(CheckpointedLossTest, ALossOfCachedEmbeddingsMayBeInARegion) {
  const auto run = [](Around around, bool cached) {
    return TracesOf(3, [&](World& world) {
      const Way way{.pairs = {4, 0, 5}, .chunks = {2, 0, 3}};
      RaggedRank rank(world, {});
      const Range own = OwnRanges(world, way)[0];
      const int chunks = cached ? way.chunks[static_cast<size_t>(world.rank())] : 0;
      const Recording on(rank.tape, {.seed = 5, .step = 1, .samples = SamplesOf(own)});
      std::vector<Variable> e =
          cached ? EmbedBatch(rank, own, chunks, way.reduction) : Embed(rank, own);
      const Mesh mesh = world.mesh();
      const auto body = [mesh](const Variable& a, const Variable& b, const Variable&,
                               const Variable&) {
        return RankingLoss({a, b}, mesh, {.temperature = 0.5});
      };
      const LossSum loss = RunAround(around, body, e[0], e[1], e[0], e[0]);
      rank.tape.Backward(loss.value);
      std::vector<std::vector<double>> results;
      for (const auto& [name, values] : GradientsOf(rank.model, &world.group())) {
        results.push_back(values);
      }
      return results;
    });
  };
  const std::vector<Trace> uncached = run(Around::kNothing, false);
  const std::vector<Trace> plain = run(Around::kNothing, true);
  for (size_t k = 0; k < uncached[0].results.size(); ++k) {
    EXPECT_LT(RelativeError(plain[0].results[k], uncached[0].results[k]), 1e-12);
  }
  for (const Around around : kRegions) {
    const std::vector<Trace> got = run(around, true);
    for (size_t r = 0; r < plain.size(); ++r) {
      EXPECT_EQ(got[r].calls, plain[r].calls) << static_cast<int>(around);
      EXPECT_EQ(got[r].results, plain[r].results) << static_cast<int>(around);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
