#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/packing.h"
#include "data/sample_list.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/device.h"

namespace data {
namespace {

using Ids = std::vector<int64_t>;

// Sample i has i % 4 + 1 tokens, all i.
class Numbered : public Samples {
 public:
  explicit Numbered(int64_t size, int64_t bad = -1) : size_(size), bad_(bad) {}
  int64_t size() const override { return size_; }
  int64_t length(int64_t i) const override { return i % 4 + 1; }
  PackedRow Row(int64_t i) const override {
    if (i == bad_) throw std::runtime_error("sample is bad");
    const auto n = static_cast<size_t>(length(i));
    return {Ids(n, i), Ids(n, i), Ids(n, 0), Ids(n, 1), {0, length(i)}};
  }

 private:
  int64_t size_, bad_;
};

// The ranks of a run, one after the other in this thread.
struct Ranks {
  Ranks(const Samples& samples, const LoaderOptions& options, int size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<Loader>(samples, options, rank, size, sherd::Device::Cpu()));
    }
  }
  // The samples of the next window in the order of its micro-batches; empty at the run's end.
  Ids Window() {
    std::vector<std::vector<Ids>> shares;
    for (auto& rank : ranks) {
      shares.emplace_back();
      while (std::optional<Batch> batch = (*rank)()) shares.back().push_back(batch->samples);
    }
    Ids all;
    for (size_t i = 0; i < shares[0].size(); ++i) {
      for (const auto& share : shares) {
        if (i < share.size()) all.insert(all.end(), share[i].begin(), share[i].end());
      }
    }
    return all;
  }
  std::vector<std::unique_ptr<Loader>> ranks;
};

std::vector<Ids> Windows(Ranks& run, int most) {
  std::vector<Ids> windows;
  while (static_cast<int>(windows.size()) < most) {
    Ids window = run.Window();
    if (window.empty()) break;
    windows.push_back(std::move(window));
  }
  return windows;
}

TEST(LoaderTest, OrderIsTheSameForEveryNumberOfRanksAndAfterResumes) {
  const Numbered samples(23);
  for (const int64_t budget : {0, 9}) {
    const LoaderOptions options = {
        .window = 7, .rows = 2, .token_budget = budget, .epochs = 3, .seed = 4};
    Ranks one(samples, options, 1);
    const std::vector<Ids> expected = Windows(one, 100);
    ASSERT_EQ(expected.size(), 12u);  // 7 7 7 2 in each epoch
    for (int epoch = 0; epoch < 3; ++epoch) {
      Ids all;
      for (int w = 0; w < 4; ++w) {
        const Ids& window = expected[static_cast<size_t>(4 * epoch + w)];
        all.insert(all.end(), window.begin(), window.end());
      }
      std::sort(all.begin(), all.end());
      ASSERT_EQ(all.size(), 23u);
      for (int64_t i = 0; i < 23; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
    }
    for (const int before : {1, 2, 4}) {
      for (const int after : {1, 2, 4}) {
        Ranks run(samples, options, before);
        std::vector<Ids> windows = Windows(run, 6);  // amid the second epoch
        const std::string state = run.ranks[0]->state();
        for (auto& rank : run.ranks) EXPECT_EQ(rank->state(), state);
        Ranks resumed(samples, options, after);
        for (auto& rank : resumed.ranks) {
          (*rank)();  // what was begun is forgotten
          ASSERT_TRUE(rank->Restore(state).ok());
        }
        const std::vector<Ids> rest = Windows(resumed, 100);
        windows.insert(windows.end(), rest.begin(), rest.end());
        EXPECT_EQ(windows, expected) << before << " ranks, then " << after;
      }
    }
  }
}

TEST(LoaderTest, StateInsideAWindowIsItsBeginning) {
  const Numbered samples(10);
  Loader loader(samples, {.window = 4, .rows = 2}, 0, 1, sherd::Device::Cpu());
  const std::string begin = loader.state();
  const Ids first = loader()->samples;
  EXPECT_EQ(loader.state(), begin);
  ASSERT_TRUE(loader.Restore(loader.state()).ok());
  EXPECT_EQ(loader()->samples, first);
  loader();
  EXPECT_FALSE(loader().has_value());
  EXPECT_NE(loader.state(), begin);
  EXPECT_FALSE(loader.Restore("{}").ok());
}

TEST(LoaderTest, RowsArePaddedToTheLongestWithinTheBudget) {
  const Numbered samples(40);
  Loader loader(samples, {.window = 40, .token_budget = 8}, 0, 1, sherd::Device::Cpu());
  int64_t rows = 0;
  while (std::optional<Batch> batch = loader()) {
    int64_t longest = 0;
    for (int64_t i : batch->samples) longest = std::max(longest, i % 4 + 1);
    const int64_t b = batch->tokens.dim(0), t = batch->tokens.dim(1);
    EXPECT_EQ(t, longest);
    EXPECT_LE(b * t, 8);
    const Ids tokens = batch->tokens.ToHost<int64_t>(), labels = batch->labels.ToHost<int64_t>();
    const Ids segments = batch->segments.ToHost<int64_t>();
    for (int64_t i = 0; i < b * t; ++i) {
      const int64_t sample = batch->samples[static_cast<size_t>(i / t)];
      const bool there = i % t <= sample % 4;
      EXPECT_EQ(tokens[static_cast<size_t>(i)], there ? sample : 0);
      EXPECT_EQ(labels[static_cast<size_t>(i)], there ? sample : -100);
      EXPECT_EQ(segments[static_cast<size_t>(i)], there ? 1 : 0);
    }
    rows += b;
  }
  EXPECT_EQ(rows, 40);
}

TEST(LoaderTest, PiecesOfARowAreBoundsAmongAllTokens) {
  const SampleList samples({{.text = "abcd"}, {.tokens = {1, 2}, .labels = {2, -100}}});
  EXPECT_FALSE(MakeBatch(samples, Ids{0, 1}, sherd::Device::Cpu()).cu_seqlens.defined());
  DocumentList documents;
  for (const int64_t length : {3, 2, 4}) documents.Add(Ids(static_cast<size_t>(length), 7));
  const Packing packing(documents, 6);  // 3 2 and 4, each with padding
  const Batch batch = MakeBatch(PackedSamples(packing), Ids{1, 0}, sherd::Device::Cpu());
  EXPECT_EQ(batch.cu_seqlens.ToHost<int64_t>(), (Ids{0, 4, 6, 9, 11, 12}));
}

TEST(SampleListTest, TextsPredictTheNextByteAndTokensTheirLabels) {
  const SampleList samples(
      {{.text = "ab"}, {.tokens = {5, 6}, .labels = {-100, 9}}, {.text = "x"}});
  ASSERT_EQ(samples.size(), 3);
  EXPECT_EQ(samples.length(0), 2);
  EXPECT_EQ(samples.Row(0).tokens, (Ids{'a', 'b'}));
  EXPECT_EQ(samples.Row(0).labels, (Ids{'b', -100}));
  EXPECT_EQ(samples.Row(0).positions, (Ids{0, 1}));
  EXPECT_EQ(samples.Row(0).segments, (Ids{1, 1}));
  EXPECT_EQ(samples.Row(1).tokens, (Ids{5, 6}));
  EXPECT_EQ(samples.Row(1).labels, (Ids{-100, 9}));
  EXPECT_EQ(samples.Row(2).labels, (Ids{-100}));
}

TEST(LoaderTest, ErrorComesWithTheBatchThatHasIt) {
  const LoaderOptions options = {.window = 6, .rows = 1, .prefetch = 4};
  const Numbered plain(6);
  Loader order(plain, options, 0, 1, sherd::Device::Cpu());
  Ids ids;
  while (std::optional<Batch> batch = order()) ids.push_back(batch->samples[0]);
  const Numbered bad(6, ids[3]);
  Loader loader(bad, options, 0, 1, sherd::Device::Cpu());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(loader()->samples, Ids{ids[i]});
  EXPECT_THROW(loader(), std::runtime_error);
  EXPECT_THROW(loader(), std::runtime_error);
}

TEST(LoaderTest, DestructionAmidARunJoinsTheThread) {
  const Numbered samples(1000);
  for (int i = 0; i < 20; ++i) {
    Loader loader(samples, {.window = 100, .rows = 1, .epochs = 5}, 0, 1, sherd::Device::Cpu());
    if (i % 2 == 0) loader();
  }
}

TEST(LoaderTest, OptionsThatCannotBeAreNamed) {
  const Numbered samples(10);
  const auto error = [&](const LoaderOptions& options, int rank) -> std::string {
    try {
      Loader loader(samples, options, rank, 2, sherd::Device::Cpu());
    } catch (const sherd::Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_NE(error({.window = 0}, 0).find("window is 0"), std::string::npos);
  EXPECT_NE(error({.prefetch = 0}, 0).find("prefetch is 0"), std::string::npos);
  EXPECT_NE(error({}, 2).find("rank 2 of 2"), std::string::npos);
  EXPECT_NE(error({.token_budget = 3}, 0).find("sample 3 has 4 tokens"), std::string::npos);
}

}  // namespace
}  // namespace data
