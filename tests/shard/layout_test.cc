// Layout is arithmetic: its properties hold for any sizes and any number of ranks.

#include "sherd/shard/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "sherd/runtime/core/random.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

constexpr std::array kDTypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

std::vector<LayoutEntry> RandomEntries(uint64_t seed, int64_t largest) {
  const auto count = 1 + Philox4x32(seed, 0, 0)[0] % 12;
  std::vector<LayoutEntry> entries;
  for (uint64_t i = 0; i < count; ++i) {
    const auto random = Philox4x32(seed, i, 1);
    entries.push_back(
        {random[0] % largest, kDTypes[random[1] % kDTypes.size()], random[2] % 3 != 0});
  }
  return entries;
}

// Pieces in rank order are the entry, without gaps or overlaps; within a rank's chunk no two pieces
// meet.
void ExpectCoversOnce(const std::vector<LayoutEntry>& entries, int ranks) {
  const Layout layout(entries, ranks);
  ASSERT_EQ(layout.ranks(), ranks);
  ASSERT_EQ(layout.entries(), static_cast<int>(entries.size()));
  for (int i = 0; i < layout.entries(); ++i) {
    const LayoutSegment& segment = layout.segments()[static_cast<size_t>(layout.segment_of(i))];
    const LayoutEntry& entry = entries[static_cast<size_t>(i)];
    EXPECT_EQ(segment.dtype, entry.dtype);
    EXPECT_EQ(segment.trainable, entry.trainable);
    int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const LayoutPiece piece = layout.PieceOf(i, rank);
      ASSERT_GE(piece.elems, 0);
      if (piece.elems == 0) continue;
      ASSERT_EQ(piece.offset, next) << "entry " << i << " rank " << rank;
      next += piece.elems;
      // Where a piece lies in the flat space, said in two ways.
      ASSERT_EQ(rank * segment.chunk_elems + piece.chunk_offset,
                layout.offset_of(i) + piece.offset);
      ASSERT_GE(piece.chunk_offset, 0);
      ASSERT_LE(piece.chunk_offset + piece.elems, segment.chunk_elems);
    }
    ASSERT_EQ(next, entry.elems) << "entry " << i << " of " << ranks << " ranks";
  }
  int64_t full = 0;
  int64_t trainable = 0;
  std::set<int> seen;
  for (const LayoutSegment& segment : layout.segments()) {
    int64_t elems = 0;
    for (int i : segment.entries) {
      EXPECT_TRUE(seen.insert(i).second) << "entry " << i << " is in two segments";
      EXPECT_EQ(layout.offset_of(i), elems) << "entries lie one after another";
      elems += entries[static_cast<size_t>(i)].elems;
    }
    EXPECT_EQ(segment.elems, elems);
    const int64_t padding = segment.padded_elems(ranks) - segment.elems;
    EXPECT_GE(padding, 0);
    EXPECT_LT(padding, ranks);
    full += segment.padded_elems(ranks) * SizeOf(segment.dtype);
    if (segment.trainable) trainable += segment.padded_elems(ranks) * SizeOf(segment.dtype);
  }
  EXPECT_EQ(seen.size(), entries.size());
  EXPECT_EQ(layout.full_bytes(), full);
  EXPECT_EQ(layout.shard_bytes() * ranks, full);
  EXPECT_EQ(layout.gradient_bytes(), trainable);
}

TEST(LayoutTest, EveryElementHasOnePlaceForAnySizesAndRanks) {
  for (int ranks : {1, 2, 3, 4, 5, 7, 8, 16, 61, 255, 256, 1000, 1024}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE("ranks " + std::to_string(ranks) + " seed " + std::to_string(seed));
      ExpectCoversOnce(RandomEntries(seed, seed % 3 == 0 ? 5 : 3000), ranks);
    }
  }
}

TEST(LayoutTest, EveryNumberOfRanksUpTo64) {
  for (int ranks = 1; ranks <= 64; ++ranks) ExpectCoversOnce(RandomEntries(100, 50), ranks);
}

TEST(LayoutTest, ParameterSmallerThanTheRanksLeavesSomeEmpty) {
  const std::array<LayoutEntry, 1> entries = {LayoutEntry{3, DType::kF32, true}};
  const Layout layout(entries, 8);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(layout.PieceOf(0, rank).elems, rank < 3 ? 1 : 0);
  EXPECT_EQ(layout.shard_bytes(), 4);
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
}

}  // namespace
}  // namespace sherd::testing
