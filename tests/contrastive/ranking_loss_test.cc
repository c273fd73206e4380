// The ranking loss over ranks against the joined batch in plain f64 loops: the loss, every
// gradient, and what is refused.

#include "sherd/shard/ranking_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/contrastive/pairs.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

constexpr double kTolerance = 1e-12;
constexpr int64_t kColumns = 6;

// The batch over ranks: pairs and negatives of each.
struct Split {
  Cut pairs, negatives;
};

Split Take(const Split& split, int ranks) {
  // What the first ranks leave goes to the last.
  Split cut;
  const auto fold = [ranks](const Cut& all) {
    Cut out(all.begin(), all.begin() + ranks);
    for (size_t i = static_cast<size_t>(ranks); i < all.size(); ++i) out.back() += all[i];
    return out;
  };
  cut.pairs = fold(split.pairs);
  cut.negatives = fold(split.negatives);
  return cut;
}

std::vector<double> GradientOf(const Variable& leaf) {
  const Tensor grad = leaf.grad();
  if (!grad.defined()) return std::vector<double>(static_cast<size_t>(leaf.value().numel()), 0.0);
  return grad.ToHost<double>();
}

// The ranks' losses and gradients, as the joined batch has them.
struct Joined {
  double loss = 0.0;
  int64_t items = 0;
  std::vector<double> queries, documents, negatives;
  double log_scale = 0.0;
};

Joined RunOnRanks(const Pairs& batch, const Split& split, const RankingOptions& options) {
  const int ranks = static_cast<int>(split.pairs.size());
  std::vector<Joined> parts(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](World& world) {
    const int rank = world.rank();
    const Device& device = world.device();
    const auto leaf = [&](const Matrix& all, const Cut& cut) {
      return Variable::Leaf(RowsTensor(device, PartOf(all, cut, rank), kColumns));
    };
    RankingEmbeddings e{leaf(batch.queries, split.pairs), leaf(batch.documents, split.pairs)};
    // A rank without negatives may leave them out.
    if (split.negatives[static_cast<size_t>(rank)] > 0) {
      e.negatives = leaf(batch.negatives, split.negatives);
    }
    if (!std::isnan(batch.log_scale)) {
      e.log_scale = Variable::Leaf(TensorOf<double>(device, {batch.log_scale}, {1}));
    }
    const RankingIds ids{IdsTensor(device, batch.query_ids, split.pairs, rank),
                         IdsTensor(device, batch.document_ids, split.pairs, rank),
                         IdsTensor(device, batch.negative_ids, split.negatives, rank)};
    Tape tape;
    const Recording on(tape);
    const LossSum loss = RankingLoss(e, world.mesh(), options, ids);
    tape.Backward(loss.value);
    Joined& part = parts[static_cast<size_t>(rank)];
    part.loss = loss.value.value().Item<double>();
    part.items = loss.items;
    part.queries = GradientOf(e.queries);
    part.documents = GradientOf(e.documents);
    if (e.negatives.defined()) part.negatives = GradientOf(e.negatives);
    if (e.log_scale.defined()) part.log_scale = GradientOf(e.log_scale)[0];
  });
  Joined all;
  for (const Joined& part : parts) {
    all.loss += part.loss;
    all.items += part.items;
    all.log_scale += part.log_scale;
    all.queries.insert(all.queries.end(), part.queries.begin(), part.queries.end());
    all.documents.insert(all.documents.end(), part.documents.begin(), part.documents.end());
    all.negatives.insert(all.negatives.end(), part.negatives.begin(), part.negatives.end());
  }
  return all;
}

void ExpectJoined(const Joined& got, const Pairs& batch, const RankingOptions& options,
                  const std::string& what) {
  SCOPED_TRACE(what);
  const PairsGradient want = JoinedLoss(batch, options);
  EXPECT_EQ(got.items, static_cast<int64_t>(batch.queries.size()));
  EXPECT_LT(RelativeError({got.loss}, {want.loss}), kTolerance);
  EXPECT_LT(RelativeError(got.queries, Flat(want.queries)), kTolerance);
  EXPECT_LT(RelativeError(got.documents, Flat(want.documents)), kTolerance);
  EXPECT_LT(RelativeError(got.negatives, Flat(want.negatives)), kTolerance);
  if (!std::isnan(batch.log_scale)) {
    EXPECT_LT(RelativeError({got.log_scale}, {want.log_scale}), kTolerance);
  }
}

struct Form {
  std::string name;
  RankingOptions options;
  std::function<void(Pairs&)> change = {};
};

// Every option, alone and together.
std::vector<Form> Forms() {
  const auto ids = [](Pairs& batch) {
    for (size_t i = 0; i < batch.queries.size(); ++i) {
      batch.query_ids.push_back(static_cast<int64_t>(i % 6));
      batch.document_ids.push_back(static_cast<int64_t>(100 + i % 5));
    }
    for (size_t m = 0; m < batch.negatives.size(); ++m) {
      batch.negative_ids.push_back(static_cast<int64_t>(103 + m));
    }
  };
  const auto learn = [](Pairs& batch) { batch.log_scale = 1.25; };
  const auto both = [=](Pairs& batch) {
    ids(batch);
    learn(batch);
  };
  const auto document_ids = [](Pairs& batch) {
    for (size_t i = 0; i < batch.queries.size(); ++i) {
      batch.document_ids.push_back(static_cast<int64_t>(i / 2));
    }
  };
  return {{"plain", {}},
          {"products", {.temperature = 0.7, .normalize = false}},
          {"symmetric", {.temperature = 0.2, .symmetric = true}},
          {"matryoshka", {.temperature = 0.3, .matryoshka = {{2, 0.5}, {5, 2.0}, {6, 1.0}}}},
          {"learnable", {}, learn},
          {"ids", {.temperature = 0.4}, ids},
          {"document ids", {.temperature = 0.4, .symmetric = true}, document_ids},
          {"all", {.symmetric = true, .matryoshka = {{3, 1.5}, {6, 0.25}}}, both}};
}

// Equal, ragged, with a rank that has nothing, and with one that has negatives alone.
const Split kSplits[] = {{{2, 2, 2, 2}, {1, 1, 1, 1}},
                         {{3, 1, 0, 4}, {2, 0, 0, 3}},
                         {{0, 5, 2, 1}, {0, 1, 4, 0}},
                         {{4, 0, 3, 1}, {0, 3, 0, 1}}};

TEST(RankingLossTest, EqualsTheJoinedBatchHoweverItIsSplit) {
  for (const Form& form : Forms()) {
    for (const bool with_negatives : {true, false}) {
      for (Split split : kSplits) {
        if (!with_negatives) split.negatives = {0, 0, 0, 0};
        int64_t negatives = 0;
        for (int64_t n : split.negatives) negatives += n;
        Pairs batch = RandomPairs(8, negatives, kColumns);
        if (form.change) form.change(batch);
        for (int ranks = 1; ranks <= 4; ++ranks) {
          const Split cut = Take(split, ranks);
          ExpectJoined(RunOnRanks(batch, cut, form.options), batch, form.options,
                       form.name + " on " + std::to_string(ranks) + " ranks");
        }
      }
    }
  }
}

// Rows of all ranks, those of rank order[0] first.
template <typename T>
std::vector<T> Permuted(const std::vector<T>& all, const Cut& cut, const std::vector<int>& order) {
  std::vector<T> out;
  for (int rank : order) {
    const std::vector<T> part = PartOf(all, cut, rank);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

TEST(RankingLossTest, PermutingTheRanksChangesNothing) {
  // The same pairs, negatives and ids on other ranks: each rank's gradients go with them.
  const Split split{{3, 0, 4, 2}, {1, 2, 0, 1}};
  for (const Form& form : Forms()) {
    Pairs batch = RandomPairs(9, 4, kColumns);
    if (form.change) form.change(batch);
    const Joined here = RunOnRanks(batch, split, form.options);
    for (const std::vector<int>& order :
         {std::vector{1, 2, 3, 0}, std::vector{3, 2, 1, 0}, std::vector{2, 0, 3, 1}}) {
      SCOPED_TRACE(form.name + ", rank " + std::to_string(order[0]) + " first");
      Pairs there;
      there.queries = Permuted(batch.queries, split.pairs, order);
      there.documents = Permuted(batch.documents, split.pairs, order);
      there.negatives = Permuted(batch.negatives, split.negatives, order);
      there.query_ids = Permuted(batch.query_ids, split.pairs, order);
      there.document_ids = Permuted(batch.document_ids, split.pairs, order);
      there.negative_ids = Permuted(batch.negative_ids, split.negatives, order);
      there.log_scale = batch.log_scale;
      const Split turned{Permuted(split.pairs, {1, 1, 1, 1}, order),
                         Permuted(split.negatives, {1, 1, 1, 1}, order)};
      const Joined got = RunOnRanks(there, turned, form.options);
      // Where the gradient of a row went: rows as numbers, put in the same order.
      const auto expect = [&](const std::vector<double>& now, const std::vector<double>& before,
                              const Cut& cut) {
        Matrix rows;
        for (size_t i = 0; i < before.size(); i += kColumns) {
          const auto at = before.begin() + static_cast<int64_t>(i);
          rows.emplace_back(at, at + kColumns);
        }
        EXPECT_LT(RelativeError(now, Flat(Permuted(rows, cut, order))), kTolerance);
      };
      EXPECT_LT(RelativeError({got.loss}, {here.loss}), kTolerance);
      EXPECT_LT(std::abs(got.log_scale - here.log_scale), kTolerance * std::abs(here.loss));
      expect(got.queries, here.queries, split.pairs);
      expect(got.documents, here.documents, split.pairs);
      expect(got.negatives, here.negatives, split.negatives);
    }
  }
}

TEST(RankingLossTest, GradientsOf16BitsAreSummedInF32) {
  // Rounding once: the gradient of a document is that of f32 rounded to bf16, on any rank.
  const Pairs batch = RandomPairs(4, 0, kColumns);
  RunRanks(2, [&](World& world) {
    const Cut cut = {2, 2};
    const auto leaf = [&](const Matrix& all, DType dtype) {
      const Tensor wide = RowsTensor(world.device(), PartOf(all, cut, world.rank()), kColumns);
      const Tensor half = Tensor::Empty(world.device(), DType::kBF16, wide.shape());
      kernels::Cast(wide, half);
      const Tensor out = Tensor::Empty(world.device(), dtype, wide.shape());
      kernels::Cast(half, out);
      return Variable::Leaf(out);
    };
    std::vector<std::vector<float>> grads;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Variable queries = leaf(batch.queries, dtype);
      const Variable documents = leaf(batch.documents, dtype);
      Tape tape;
      const Recording on(tape);
      tape.Backward(RankingLoss({queries, documents}, world.mesh()).value);
      const Tensor half = Tensor::Empty(world.device(), DType::kBF16, documents.shape());
      kernels::Cast(documents.grad(), half);
      const Tensor wide = Tensor::Empty(world.device(), DType::kF32, documents.shape());
      kernels::Cast(half, wide);
      grads.push_back(wide.ToHost<float>());
    }
    EXPECT_EQ(grads[0], grads[1]);
  });
}

// What rank 1 gives differently, and what all ranks are told.
struct Bad {
  std::string text;
  std::function<void(const Device&, RankingEmbeddings&, RankingOptions&, RankingIds&)> change;
  bool everywhere = false;
};

std::vector<std::string> TextsOf(const Bad& bad) {
  std::mutex mutex;
  std::vector<std::string> texts(2);
  RunRanks(2, [&](World& world) {
    const Pairs batch = RandomPairs(2, 0, 3);
    const auto rows = [&](const Matrix& all) { return RowsTensor(world.device(), all, 3); };
    RankingEmbeddings e{rows(batch.queries), rows(batch.documents)};
    RankingOptions options;
    RankingIds ids;
    if (bad.everywhere || world.rank() == 1) bad.change(world.device(), e, options, ids);
    const std::string text = ErrorOf([&] { RankingLoss(e, world.mesh(), options, ids); });
    // The group is usable, and so is a good batch.
    const RankingEmbeddings good{rows(batch.queries), rows(batch.documents)};
    EXPECT_EQ(ErrorOf([&] { RankingLoss(good, world.mesh()); }), "no error");
    const std::lock_guard<std::mutex> lock(mutex);
    texts[static_cast<size_t>(world.rank())] = text;
  });
  return texts;
}

TEST(RankingLossTest, BadInputIsAnErrorOnAllRanks) {
  using E = RankingEmbeddings;
  using O = RankingOptions;
  using I = RankingIds;
  const auto set = [](const Variable& x, int64_t at, double value) {
    x.value().data<double>()[at] = value;
  };
  const auto zeros = [](const Device& d, int64_t rows, int64_t columns) {
    return Variable(Tensor::Zeros(d, DType::kF64, {rows, columns}));
  };
  const std::vector<Bad> cases = {
      {"rank 1 has NaN or infinity in row 1 of its queries",
       [=](const Device&, E& e, O&, I&) { set(e.queries, 4, std::nan("")); }},
      {"rank 1 has NaN or infinity in row 0 of its documents",
       [=](const Device&, E& e, O&, I&) { set(e.documents, 2, INFINITY); }},
      {"rank 1 has only zeros in row 0 of its negatives",
       [=](const Device& d, E& e, O&, I&) { e.negatives = zeros(d, 1, 3); }},
      {"rank 1 has a temperature that is not positive",
       [](const Device&, E&, O& o, I&) { o.temperature = 0.0; }},
      {"rank 1 has another temperature", [](const Device&, E&, O& o, I&) { o.temperature = 0.1; }},
      {"rank 1 has another options", [](const Device&, E&, O& o, I&) { o.symmetric = true; }},
      {"rank 1 has another matryoshka",
       [](const Device&, E&, O& o, I&) {
         o.matryoshka = {{2, 1.0}};
       }},
      {"rank 1 wants part 0 of 4 of 3 columns",
       [](const Device&, E&, O& o, I&) {
         o.matryoshka = {{4, 1.0}};
       }},
      {"rank 1 has 2 queries and 1 documents",
       [](const Device&, E& e, O&, I&) { e.documents = e.documents.value().Slice(0, 0, 1); }},
      {"rank 1 has another columns",
       [](const Device&, E& e, O&, I&) {
         e.queries = e.queries.value().Slice(1, 0, 2);
         e.documents = e.documents.value().Slice(1, 0, 2);
       }},
      {"rank 1 has documents of other columns",
       [](const Device&, E& e, O&, I&) { e.documents = e.documents.value().Slice(1, 0, 2); }},
      {"rank 0 has no ids of its documents, and rank 1 has",
       [](const Device& d, E&, O&, I& i) {
         i.documents = TensorOf<int64_t>(d, {1, 2}, {2});
       }},
      {"rank 1 has 2 queries and other ids than one i64 for each",
       [](const Device& d, E&, O&, I& i) { i.queries = TensorOf<int64_t>(d, {1}, {1}); }},
      {"rank 1 has documents that are no float [rows, columns]",
       [](const Device&, E& e, O&, I&) { e.documents = Variable(); }},
      {"rank 1 has only zeros in row 0 of its queries or in its first columns",
       [=](const Device&, E& e, O&, I&) {
         for (int64_t c = 0; c < 3; ++c) set(e.queries, c, 1e-13);
       }},
      {"rank 0 has only zeros in row 1 of its documents or in its first columns",
       [=](const Device&, E& e, O& o, I&) {
         o.matryoshka = {{1, 0.5}, {3, 1.0}};
         set(e.documents, 3, 0.0);
       },
       true},
      {"rank 1 has another options or learnable temperature",
       [](const Device& d, E& e, O&, I&) { e.log_scale = TensorOf<double>(d, {1.0}, {1}); }},
      {"rank 1 has another options", [](const Device&, E&, O& o, I&) { o.check_values = false; }},
      {"rank 1 has a log_scale whose exponential is no positive number",
       [](const Device& d, E& e, O&, I&) { e.log_scale = TensorOf<double>(d, {-800.0}, {1}); }},
      {"rank 0 has a log_scale whose exponential is no positive number",
       [](const Device& d, E& e, O&, I&) {
         e.log_scale = TensorOf<double>(d, {std::nan("")}, {1});
       },
       true},
      {"rank 0 has a log_scale whose exponential is no positive number",
       [](const Device& d, E& e, O&, I&) { e.log_scale = TensorOf<double>(d, {800.0}, {1}); },
       true},
      {"rank 0 has a log_scale that is no float [1]",
       [](const Device& d, E& e, O&, I&) { e.log_scale = TensorOf<int64_t>(d, {1}, {1}); }, true},
      {"no rank has a pair",
       [=](const Device& d, E& e, O&, I&) { e = {zeros(d, 0, 3), zeros(d, 0, 3)}; }, true}};
  for (const Bad& bad : cases) {
    for (const std::string& text : TextsOf(bad)) EXPECT_TRUE(Contains(text, bad.text));
  }
}

TEST(RankingLossTest, ALearnableTemperatureThatDiffersIsAnErrorOnAllRanks) {
  RunRanks(3, [](World& world) {
    const Pairs batch = RandomPairs(2, 0, 3);
    RankingEmbeddings e{RowsTensor(world.device(), batch.queries, 3),
                        RowsTensor(world.device(), batch.documents, 3)};
    const double value = world.rank() == 2 ? 1.0 + 1e-15 : 1.0;
    e.log_scale = TensorOf<double>(world.device(), {value}, {1});
    EXPECT_TRUE(Contains(ErrorOf([&] { RankingLoss(e, world.mesh()); }),
                         "rank 2 has another temperature than rank 0"));
    // Whoever does not want values to be read on the host is not told.
    EXPECT_EQ(ErrorOf([&] { RankingLoss(e, world.mesh(), {.check_values = false}); }), "no error");
  });
}

TEST(RankingLossTest, OnePairHasNothingToBeToldFrom) {
  const auto texts = [](bool symmetric, bool negative) {
    std::mutex mutex;
    std::vector<std::string> all;
    RunRanks(2, [&](World& world) {
      const Pairs batch = RandomPairs(1, 1, 3);
      const Cut cut = {1, 0};
      const auto rows = [&](const Matrix& m) {
        return Variable(RowsTensor(world.device(), PartOf(m, cut, world.rank()), 3));
      };
      RankingEmbeddings e{rows(batch.queries), rows(batch.documents)};
      if (negative) e.negatives = rows(batch.negatives);
      const std::string text =
          ErrorOf([&] { RankingLoss(e, world.mesh(), {.symmetric = symmetric}); });
      const std::lock_guard<std::mutex> lock(mutex);
      all.push_back(text);
    });
    return all;
  };
  for (const std::string& text : texts(false, false)) {
    EXPECT_TRUE(Contains(text, "one pair on all ranks together and no negative"));
  }
  for (const std::string& text : texts(true, true)) {
    EXPECT_TRUE(Contains(text, "in the symmetric form its query is told from nothing"));
  }
  for (const std::string& text : texts(false, true)) EXPECT_EQ(text, "no error");
}

}  // namespace
}  // namespace sherd::testing
