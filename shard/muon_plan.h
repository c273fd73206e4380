#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd {

// The contiguous piece of a matrix that one rank holds; perhaps empty.
struct MatrixPiece {
  int64_t offset = 0;
  int64_t elems = 0;
};

// One matrix and who holds what of it.
struct MatrixPlace {
  int64_t elems = 0;
  // Of each rank. Several ranks may hold the same piece, or all of it.
  std::vector<MatrixPiece> pieces;
  // Matrices of different kinds are never in one round: their elements differ in size.
  int kind = 0;
};

// A piece on its way: it lies in the slot of rank `from`, at element `at`.
struct MatrixMove {
  int matrix = 0;
  MatrixPiece piece;
  int from = 0;
  int64_t at = 0;
};

// Matrices that are handled together: gathered at their owners, and sent back.
struct MuonRound {
  std::vector<int> matrices;
  std::vector<int> owners;  // of each of them
  // To the owners, and back to all who hold a piece and are not the owner. The slots are what each
  // rank contributes to an all-gather, in elements.
  std::vector<MatrixMove> in;
  std::vector<MatrixMove> out;
  int64_t in_slot = 0;
  int64_t out_slot = 0;
};

// Chooses for each matrix the rank where it is assembled, and the messages that takes.
//
// The owner is the rank with the least to do: elements it owns in this round, plus those that would
// have to be sent to it. So a matrix that lies on one rank stays there unless that rank has much
// more to do than another, and ranks that all hold a matrix take turns.
// The same on all ranks for the same arguments. Pure arithmetic.
// Cost: in the matrices times the ranks.
// REQUIRES: the pieces of a matrix cover it; pieces of two ranks are the same or do not overlap.
std::vector<MuonRound> PlanMuon(std::span<const MatrixPlace> matrices, std::span<const int> in_use,
                                int ranks, int64_t round_elems);

}  // namespace sherd
