// Owners and messages of Muon's matrices, by hand.

#include "sherd/shard/muon_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sherd::testing {
namespace {

MatrixPlace PlaceOf(int64_t elems, std::vector<MatrixPiece> pieces) {
  return {elems, std::move(pieces), 0};
}

TEST(MuonPlanTest, RanksThatAllHoldAMatrixTakeTurns) {
  std::vector<MatrixPlace> places;
  std::vector<int> in_use;
  for (int i = 0; i < 6; ++i) {
    places.push_back(PlaceOf(10, {{0, 10}, {0, 10}, {0, 10}}));
    in_use.push_back(i);
  }
  const std::vector<MuonRound> rounds = PlanMuon(places, in_use, 3, 1000);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].owners, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_TRUE(rounds[0].in.empty());
  // Every update goes to the two others in one slot.
  EXPECT_EQ(rounds[0].out.size(), 6u);
  EXPECT_EQ(rounds[0].out_slot, 20);
  // One a round: they still take turns.
  const std::vector<MuonRound> single = PlanMuon(places, in_use, 3, 10);
  ASSERT_EQ(single.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(single[i].owners[0], static_cast<int>(i % 3));
}

TEST(MuonPlanTest, ARankWithMuchMoreThanAnotherGivesMatricesAway) {
  std::vector<MatrixPlace> places;
  std::vector<int> in_use;
  for (int i = 0; i < 8; ++i) {
    places.push_back(PlaceOf(10, {{0, 10}, {10, 0}}));
    in_use.push_back(i);
  }
  const std::vector<MuonRound> rounds = PlanMuon(places, in_use, 2, 1000);
  const std::vector<int>& owners = rounds[0].owners;
  EXPECT_LE(std::count(owners.begin(), owners.end(), 0), 5);
  EXPECT_GE(std::count(owners.begin(), owners.end(), 1), 3);
}

TEST(MuonPlanTest, ACutMatrixMovesToItsOwnerAndBack) {
  const std::vector<MatrixPlace> places = {PlaceOf(10, {{0, 3}, {3, 7}}),
                                           PlaceOf(8, {{0, 8}, {8, 0}})};
  const std::vector<MuonRound> rounds = PlanMuon(places, std::vector<int>{0, 1}, 2, 1000);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].owners, (std::vector<int>{1, 0}));
  ASSERT_EQ(rounds[0].in.size(), 1u);
  EXPECT_EQ(rounds[0].in[0].from, 0);
  EXPECT_EQ(rounds[0].in[0].piece.elems, 3);
  EXPECT_EQ(rounds[0].in_slot, 3);
  ASSERT_EQ(rounds[0].out.size(), 1u);
  EXPECT_EQ(rounds[0].out[0].from, 1);
  EXPECT_EQ(rounds[0].out[0].piece.offset, 0);
}

TEST(MuonPlanTest, OfEqualPiecesOneIsSentAndAllGetTheResult) {
  // Two copies, each cut in two: ranks 0 and 2 hold the same, and 1 and 3.
  const std::vector<MatrixPlace> places = {PlaceOf(10, {{0, 5}, {5, 5}, {0, 5}, {5, 5}})};
  const std::vector<MuonRound> rounds = PlanMuon(places, std::vector<int>{0}, 4, 1000);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].owners, std::vector<int>{0});
  ASSERT_EQ(rounds[0].in.size(), 1u);
  EXPECT_EQ(rounds[0].in[0].from, 1);
  // Rank 2 wants what the owner has too.
  ASSERT_EQ(rounds[0].out.size(), 2u);
  EXPECT_EQ(rounds[0].out[0].piece.offset, 0);
  EXPECT_EQ(rounds[0].out[1].piece.offset, 5);
  EXPECT_EQ(rounds[0].out[1].at, 5);
  EXPECT_EQ(rounds[0].out_slot, 10);
}

}  // namespace
}  // namespace sherd::testing
