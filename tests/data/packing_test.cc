#include "data/packing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace data {
namespace {

using Ids = std::vector<int64_t>;

TEST(PackingTest, RowsByHand) {
  DocumentList documents;
  documents.Add(Ids{1, 2, 3});
  documents.Add(Ids{});
  documents.Add(Ids{4, 5, 6, 7, 8, 9});
  documents.Add(Ids{10});
  const Packing packing(documents, 5);
  ASSERT_EQ(packing.rows(), 2);
  // 1 2 3 | 9 | 10 and 4 5 6 7 8: the long document's rest fits behind the first.
  const PackedRow first = packing.Row(0), second = packing.Row(1);
  EXPECT_EQ(first.tokens, (Ids{1, 2, 3, 9, 10}));
  EXPECT_EQ(first.labels, (Ids{2, 3, -100, -100, -100}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 0, 0}));
  EXPECT_EQ(first.segments, (Ids{1, 1, 1, 2, 3}));
  EXPECT_EQ(first.bounds, (Ids{0, 3, 4, 5}));
  EXPECT_EQ(second.tokens, (Ids{4, 5, 6, 7, 8}));
  EXPECT_EQ(second.labels, (Ids{5, 6, 7, 8, 9}));
  EXPECT_EQ(second.bounds, (Ids{0, 5}));
}

TEST(PackingTest, RowsEndWithPaddingWithoutLabels) {
  DocumentList documents;
  documents.Add(Ids{7, 8});
  const PackedRow row = Packing(documents, 4).Row(0);
  EXPECT_EQ(row.tokens, (Ids{7, 8, 0, 0}));
  EXPECT_EQ(row.labels, (Ids{8, -100, -100, -100}));
  EXPECT_EQ(row.segments, (Ids{1, 1, 0, 0}));
  EXPECT_EQ(row.bounds, (Ids{0, 2}));
}

TEST(DocumentSliceTest, CutsDocumentsAtItsEnds) {
  DocumentList documents;
  documents.Add(Ids{1, 2, 3});
  documents.Add(Ids{4, 5});
  documents.Add(Ids{6, 7, 8});
  const auto slice = [&](int64_t begin, int64_t end) {
    const DocumentSlice part(documents, begin, end);
    Ids tokens(static_cast<size_t>(part.tokens()));
    part.Copy(0, tokens);
    return std::pair(Ids(part.bounds().begin(), part.bounds().end()), tokens);
  };
  EXPECT_EQ(slice(0, 8), (std::pair(Ids{0, 3, 5, 8}, Ids{1, 2, 3, 4, 5, 6, 7, 8})));
  EXPECT_EQ(slice(1, 6), (std::pair(Ids{0, 2, 4, 5}, Ids{2, 3, 4, 5, 6})));
  EXPECT_EQ(slice(3, 5), (std::pair(Ids{0, 2}, Ids{4, 5})));
  EXPECT_EQ(slice(4, 4), (std::pair(Ids{0}, Ids{})));
}

// Tokens are numbered, so each says where it came from.
TEST(PackingTest, EveryTokenAndEveryLabelIsThereExactlyOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    DocumentList a, b;
    int64_t next = 1;
    std::set<std::pair<int64_t, int64_t>> pairs;  // a token and the next of its document
    for (int i = 0; i < 30; ++i) {
      Ids tokens(random() % 12);
      std::iota(tokens.begin(), tokens.end(), next);
      for (size_t t = 1; t < tokens.size(); ++t) pairs.emplace(tokens[t - 1], tokens[t]);
      next += static_cast<int64_t>(tokens.size());
      (i < 11 ? a : b).Add(tokens);
    }
    const JoinedDocuments documents({&a, &b});
    const auto length = static_cast<int64_t>(1 + random() % 9);
    const Packing packing(documents, length);
    std::multiset<int64_t> seen;
    std::multiset<std::pair<int64_t, int64_t>> seen_pairs;
    for (int64_t r = 0; r < packing.rows(); ++r) {
      const PackedRow row = packing.Row(r);
      for (size_t t = 0; t < row.tokens.size(); ++t) {
        if (row.segments[t] == 0) {
          EXPECT_EQ(row.labels[t], kIgnored);
          continue;
        }
        seen.insert(row.tokens[t]);
        if (row.labels[t] != kIgnored) seen_pairs.emplace(row.tokens[t], row.labels[t]);
      }
    }
    Ids all(static_cast<size_t>(next - 1));
    std::iota(all.begin(), all.end(), 1);
    EXPECT_EQ(Ids(seen.begin(), seen.end()), all);
    EXPECT_EQ(seen_pairs, decltype(seen_pairs)(pairs.begin(), pairs.end()));
  }
}

}  // namespace
}  // namespace data
