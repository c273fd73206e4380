// Layout is arithmetic: its properties hold for any sizes and any number of ranks.

#include "sherd/shard/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/core/random.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

constexpr std::array kDTypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

// How the granules of a random list are chosen.
enum class Granules { kOne, kEqual, kRows, kAny };

std::vector<LayoutEntry> RandomEntries(uint64_t seed, int64_t largest,
                                       Granules granules = Granules::kOne) {
  const auto count = 1 + Philox4x32(seed, 0, 0)[0] % 12;
  std::vector<LayoutEntry> entries;
  for (uint64_t i = 0; i < count; ++i) {
    const auto random = Philox4x32(seed, i, 1);
    const auto more = Philox4x32(seed, i, 2);
    LayoutEntry entry = {random[0] % largest, kDTypes[random[1] % kDTypes.size()],
                         random[2] % 3 != 0};
    if (granules == Granules::kEqual) {
      entry.granule = 6;
      entry.elems *= 6;
    } else if (granules == Granules::kRows) {  // a few rows of a matrix, or one of a vector
      const int64_t row = 1 + more[0] % 40;
      entry.granule = more[1] % 3 == 0 ? 1 : row * (1 + more[2] % 3);
      entry.elems *= row;
    } else if (granules == Granules::kAny) {  // coprime, the last granule short, more than there is
      entry.granule = 1 + more[0] % 97;
    }
    entries.push_back(entry);
  }
  return entries;
}

// Pieces in rank order are the entry in whole granules, without gaps or overlaps.
void ExpectCovered(const Layout& layout, int i, const LayoutEntry& entry) {
  const LayoutSegment& segment = layout.segments()[static_cast<size_t>(layout.segment_of(i))];
  EXPECT_EQ(segment.dtype, entry.dtype);
  EXPECT_EQ(segment.trainable, entry.trainable);
  int64_t next = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const LayoutPiece piece = layout.PieceOf(i, rank);
    ASSERT_GE(piece.elems, 0);
    if (piece.elems == 0) continue;
    ASSERT_EQ(piece.offset, next) << "entry " << i << " rank " << rank;
    ASSERT_EQ(piece.offset % entry.granule, 0) << "entry " << i << " rank " << rank;
    next += piece.elems;
    // Where a piece lies in the flat space, said in two ways.
    ASSERT_EQ(rank * segment.chunk_elems + piece.chunk_offset, layout.offset_of(i) + piece.offset);
    ASSERT_GE(piece.chunk_offset, 0);
    ASSERT_LE(piece.chunk_offset + piece.elems, segment.chunk_elems);
  }
  ASSERT_EQ(next, entry.elems) << "entry " << i << " of " << layout.ranks() << " ranks";
}

// Entries and padding are the flat space, each element once, in the order they are listed.
void ExpectTiled(const Layout& layout, const LayoutSegment& segment,
                 const std::vector<LayoutEntry>& entries) {
  int64_t at = 0;
  int64_t padding = 0;
  size_t next = 0;
  const auto skip_padding = [&] {
    if (next == segment.padding.size() || segment.padding[next].offset != at) return;
    ASSERT_GT(segment.padding[next].elems, 0);
    padding += segment.padding[next].elems;
    at += segment.padding[next++].elems;
  };
  int64_t elems = 0;
  for (int i : segment.entries) {
    const LayoutEntry& entry = entries[static_cast<size_t>(i)];
    if (entry.elems == 0) continue;
    skip_padding();
    ASSERT_EQ(layout.offset_of(i), at) << "entry " << i;
    at += entry.elems;
    elems += entry.elems;
  }
  skip_padding();
  ASSERT_EQ(at, segment.padded_elems(layout.ranks()));
  ASSERT_EQ(next, segment.padding.size());
  EXPECT_EQ(segment.elems, elems);
  EXPECT_LE(padding, segment.padding_bound);
}

void ExpectPaddingBounds(const LayoutSegment& segment, int ranks,
                         const std::vector<LayoutEntry>& entries) {
  if (segment.elems == 0) return;
  bool equal = true;
  bool whole = true;
  int64_t largest = 1;
  int64_t longest = 0;
  const int64_t first = entries[static_cast<size_t>(segment.entries[0])].granule;
  for (int i : segment.entries) {
    const LayoutEntry& entry = entries[static_cast<size_t>(i)];
    equal = equal && entry.granule == first;
    whole = whole && entry.elems % entry.granule == 0;
    largest = std::max(largest, entry.granule);
    longest = std::max(longest, entry.elems);
  }
  if (equal) {
    EXPECT_TRUE(std::is_sorted(segment.entries.begin(), segment.entries.end()));
  }
  if (equal && whole) {
    EXPECT_LT(segment.padding_bound, ranks * first);
  }
  EXPECT_LE(segment.padding_bound, ranks * (longest + largest));
}

void ExpectCoversOnce(const std::vector<LayoutEntry>& entries, int ranks) {
  const Layout layout(entries, ranks);
  ASSERT_EQ(layout.ranks(), ranks);
  ASSERT_EQ(layout.entries(), static_cast<int>(entries.size()));
  for (int i = 0; i < layout.entries(); ++i)
    ExpectCovered(layout, i, entries[static_cast<size_t>(i)]);
  int64_t full = 0;
  int64_t trainable = 0;
  std::set<int> seen;
  std::set<std::pair<DType, bool>> kinds;
  for (const LayoutSegment& segment : layout.segments()) {
    EXPECT_TRUE(kinds.insert({segment.dtype, segment.trainable}).second) << "two of a kind";
    for (int i : segment.entries) EXPECT_TRUE(seen.insert(i).second) << i << " is in two segments";
    ExpectTiled(layout, segment, entries);
    ExpectPaddingBounds(segment, ranks, entries);
    full += segment.padded_elems(ranks) * SizeOf(segment.dtype);
    if (segment.trainable) trainable += segment.padded_elems(ranks) * SizeOf(segment.dtype);
  }
  EXPECT_EQ(seen.size(), entries.size());
  EXPECT_EQ(layout.full_bytes(), full);
  EXPECT_EQ(layout.shard_bytes() * ranks, full);
  EXPECT_EQ(layout.gradient_bytes(), trainable);
}

constexpr std::array kRanks = {1,  2,  3,  4,  5,  6,   7,   8,   9,   10,  11,   12,  13,
                               14, 15, 16, 31, 64, 100, 127, 128, 255, 512, 1000, 1024};

TEST(LayoutTest, EveryElementHasOnePlaceForAnySizesRanksAndGranules) {
  for (Granules granules : {Granules::kOne, Granules::kEqual, Granules::kRows, Granules::kAny}) {
    for (int ranks : kRanks) {
      for (uint64_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE("granules " + std::to_string(static_cast<int>(granules)) + " ranks " +
                     std::to_string(ranks) + " seed " + std::to_string(seed));
        ExpectCoversOnce(RandomEntries(seed, seed % 3 == 0 ? 5 : 3000, granules), ranks);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(LayoutTest, EveryNumberOfRanksUpTo64) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    ExpectCoversOnce(RandomEntries(100, 50), ranks);
    ExpectCoversOnce(RandomEntries(101, 50, Granules::kRows), ranks);
  }
}

TEST(LayoutTest, GapsBeforeEntriesByHand) {
  // Granules of 4 first: 8 elements, then 4, then 5 in granules of 3 and 2: 17 in all, chunks of 9.
  // The border would cut [8, 12), so a gap of 1 comes first, and nothing is left at the end.
  const std::array<LayoutEntry, 3> entries = {LayoutEntry{5, DType::kF32, true, 3},
                                              LayoutEntry{8, DType::kF32, true, 4},
                                              LayoutEntry{4, DType::kF32, true, 4}};
  const Layout layout(entries, 2);
  const LayoutSegment& segment = layout.segments()[0];
  EXPECT_EQ(segment.entries, (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(segment.chunk_elems, 9);
  ASSERT_EQ(segment.padding.size(), 1u);
  EXPECT_EQ(segment.padding[0].offset, 8);
  EXPECT_EQ(segment.padding[0].elems, 1);
  EXPECT_EQ(layout.offset_of(2), 9);
  EXPECT_EQ(layout.offset_of(0), 13);
  EXPECT_EQ(layout.PieceOf(2, 0).elems, 0);
  EXPECT_EQ(layout.PieceOf(2, 1).chunk_offset, 0);
}

TEST(LayoutTest, RowsOfLongMatricesDivideTheChunkByHand) {
  // 10 rows of 6 and 5 rows of 4: 80 elements on 4 ranks. The first is longer than a chunk, so the
  // chunk is a multiple of 6 and at least 20: 24. The second begins at 60, 12 before a border.
  const std::array<LayoutEntry, 2> entries = {LayoutEntry{60, DType::kF32, true, 6},
                                              LayoutEntry{20, DType::kF32, true, 4}};
  const Layout layout(entries, 4);
  EXPECT_EQ(layout.segments()[0].chunk_elems, 24);
  EXPECT_EQ(layout.PieceOf(0, 2).elems, 12);
  EXPECT_EQ(layout.PieceOf(1, 2).elems, 12);
  EXPECT_EQ(layout.PieceOf(1, 3).elems, 8);
}

TEST(LayoutTest, CoprimeGranulesCostNoMoreThanTheLongestEntry) {
  // A chunk that both rows divide would have 100,160,063 elements.
  const std::array<LayoutEntry, 2> entries = {LayoutEntry{3 * 10007, DType::kF32, true, 10007},
                                              LayoutEntry{2 * 10009, DType::kF32, true, 10009}};
  const Layout layout(entries, 64);
  EXPECT_LE(layout.segments()[0].chunk_elems, 3 * 10007);
  ExpectCoversOnce({entries.begin(), entries.end()}, 64);
  // And here no int64 holds it.
  std::vector<LayoutEntry> larger;
  for (int64_t granule : {2147483647, 2147483629, 2147483587})
    larger.push_back({7 * granule, DType::kF16, true, granule});
  ExpectCoversOnce(larger, 13);
}

// A block of Llama 70B with whole rows on each of 512 ranks: by the note in layout.cc the chunk is
// a multiple of 57344, the least common multiple of both row lengths.
TEST(LayoutTest, RowsOfALargeModelPadByAFewPercent) {
  std::vector<LayoutEntry> entries;
  for (int64_t rows : {8192, 1024, 1024, 8192, 28672, 28672})
    entries.push_back({rows * 8192, DType::kBF16, true, 8192});
  entries.push_back({int64_t{8192} * 28672, DType::kBF16, true, 28672});
  for (int norm = 0; norm < 2; ++norm) entries.push_back({8192, DType::kBF16, true});
  ExpectCoversOnce(entries, 512);
  // 855,654,400 elements / 512 = 1,671,200, and 30 x 57344 = 1,720,320 is the next multiple.
  EXPECT_EQ(Layout(entries, 512).segments()[0].chunk_elems, 1720320);
}

TEST(LayoutTest, ParameterSmallerThanTheRanksLeavesSomeEmpty) {
  const std::array<LayoutEntry, 1> entries = {LayoutEntry{3, DType::kF32, true}};
  const Layout layout(entries, 8);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(layout.PieceOf(0, rank).elems, rank < 3 ? 1 : 0);
  EXPECT_EQ(layout.shard_bytes(), 4);
}

TEST(LayoutTest, GranuleLongerThanTheEntryKeepsItWhole) {
  const std::array<LayoutEntry, 2> entries = {LayoutEntry{4, DType::kF32, true, int64_t{1} << 61},
                                              LayoutEntry{2, DType::kF32, true, int64_t{1} << 62}};
  const Layout layout(entries, 3);
  EXPECT_EQ(layout.segments()[0].chunk_elems, 4);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(layout.PieceOf(0, rank).elems % 4, 0);
}

TEST(LayoutTest, ByHand) {
  // Trainable: 5 + 6 elements in chunks of 6, one of padding. Frozen: 3 in chunks of 2.
  const std::array<LayoutEntry, 3> entries = {LayoutEntry{5, DType::kF32, true},
                                              LayoutEntry{3, DType::kF32, false},
                                              LayoutEntry{6, DType::kF32, true}};
  const Layout layout(entries, 2);
  ASSERT_EQ(layout.segments().size(), 2u);
  EXPECT_EQ(layout.segments()[0].chunk_elems, 6);
  EXPECT_EQ(layout.segments()[1].chunk_elems, 2);
  const LayoutPiece first = layout.PieceOf(2, 0);
  EXPECT_EQ(first.offset, 0);
  EXPECT_EQ(first.chunk_offset, 5);
  EXPECT_EQ(first.elems, 1);
  const LayoutPiece second = layout.PieceOf(2, 1);
  EXPECT_EQ(second.offset, 1);
  EXPECT_EQ(second.chunk_offset, 0);
  EXPECT_EQ(second.elems, 5);
  EXPECT_EQ(layout.PieceOf(0, 1).elems, 0);
  EXPECT_EQ(layout.full_bytes(), (12 + 4) * 4);
  EXPECT_EQ(layout.gradient_bytes(), 12 * 4);
}

TEST(LayoutTest, NoEntriesIsNoSegment) {
  const Layout layout({}, 3);
  EXPECT_TRUE(layout.segments().empty());
  EXPECT_EQ(layout.full_bytes(), 0);
}

TEST(LayoutTest, RefusesNonsense) {
  EXPECT_TRUE(Contains(ErrorOf([] { Layout({}, 0); }), "at least one rank"));
  const std::array<LayoutEntry, 1> negative = {LayoutEntry{-1, DType::kF32, true}};
  EXPECT_TRUE(Contains(ErrorOf([&] { Layout(negative, 2); }), "-1 elements"));
  const std::array<LayoutEntry, 1> no_granule = {LayoutEntry{4, DType::kF32, true, 0}};
  EXPECT_TRUE(Contains(ErrorOf([&] { Layout(no_granule, 2); }), "granule of 0"));
}

TEST(LayoutTest, RefusesWhatOverflows) {
  constexpr int64_t kHalf = int64_t{1} << 62;
  const std::array<LayoutEntry, 2> elems = {LayoutEntry{kHalf, DType::kF32, true},
                                            LayoutEntry{kHalf, DType::kF32, true}};
  EXPECT_TRUE(Contains(ErrorOf([&] { Layout(elems, 2); }), "elements up to parameter 1 overflow"));
  const std::array<LayoutEntry, 1> bytes = {LayoutEntry{kHalf, DType::kF32, true}};
  EXPECT_TRUE(Contains(ErrorOf([&] { Layout(bytes, 2); }), "bytes of all parameters overflow"));
  const std::array<LayoutEntry, 2> together = {LayoutEntry{kHalf / 4, DType::kF32, true},
                                               LayoutEntry{kHalf / 4, DType::kF32, false}};
  EXPECT_TRUE(Contains(ErrorOf([&] { Layout(together, 2); }), "bytes of all parameters overflow"));
  const std::array<LayoutEntry, 1> padded = {LayoutEntry{kHalf, DType::kF16, true, kHalf}};
  EXPECT_TRUE(Contains(ErrorOf([&] { Layout(padded, 4); }), "padded elements of a segment"));
}

}  // namespace
}  // namespace sherd::testing
