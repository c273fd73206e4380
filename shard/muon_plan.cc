#include "sherd/shard/muon_plan.h"

#include <algorithm>
#include <numeric>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

bool Same(const MatrixPiece& a, const MatrixPiece& b) {
  return a.offset == b.offset && a.elems == b.elems;
}

// The ranks that are the first to hold their piece: together they hold the matrix once.
std::vector<int> HoldersOf(const MatrixPlace& matrix) {
  std::vector<int> holders;
  int64_t elems = 0;
  for (int rank = 0; rank < static_cast<int>(matrix.pieces.size()); ++rank) {
    const MatrixPiece& piece = matrix.pieces[static_cast<size_t>(rank)];
    const auto has = [&](int r) { return Same(matrix.pieces[static_cast<size_t>(r)], piece); };
    if (piece.elems == 0 || std::any_of(holders.begin(), holders.end(), has)) continue;
    holders.push_back(rank);
    elems += piece.elems;
  }
  SHERD_CHECK(elems == matrix.elems, "the pieces of a matrix do not cover it once");
  return holders;
}

class Planner {
 public:
  Planner(std::span<const MatrixPlace> matrices, int ranks)
      : matrices_(matrices), total_(static_cast<size_t>(ranks), 0) {}

  MuonRound Round(std::vector<int> matrices) {
    MuonRound round;
    round.matrices = std::move(matrices);
    round.owners.resize(round.matrices.size());
    load_.assign(total_.size(), 0);
    in_.assign(total_.size(), 0);
    out_.assign(total_.size(), 0);
    // Large ones first: small ones then fill up what is uneven.
    std::vector<size_t> order(round.matrices.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return PlaceOf(round.matrices[a]).elems > PlaceOf(round.matrices[b]).elems;
    });
    for (size_t i : order) round.owners[i] = Own(PlaceOf(round.matrices[i]));
    for (size_t i = 0; i < round.matrices.size(); ++i) {
      AddMoves(round, round.matrices[i], round.owners[i]);
    }
    round.in_slot = *std::max_element(in_.begin(), in_.end());
    round.out_slot = *std::max_element(out_.begin(), out_.end());
    return round;
  }

 private:
  const MatrixPlace& PlaceOf(int matrix) const { return matrices_[static_cast<size_t>(matrix)]; }

  int Own(const MatrixPlace& matrix) {
    size_t best = 0;
    int64_t best_cost = 0;
    for (size_t rank = 0; rank < total_.size(); ++rank) {
      const int64_t cost = load_[rank] + matrix.elems - matrix.pieces[rank].elems;
      const bool better = cost < best_cost || (cost == best_cost && total_[rank] < total_[best]);
      if (rank > 0 && !better) continue;
      best = rank;
      best_cost = cost;
    }
    load_[best] += matrix.elems;
    total_[best] += matrix.elems;
    return static_cast<int>(best);
  }

  void AddMoves(MuonRound& round, int matrix, int owner) {
    const MatrixPlace& place = PlaceOf(matrix);
    const MatrixPiece& own = place.pieces[static_cast<size_t>(owner)];
    for (int holder : HoldersOf(place)) {
      const MatrixPiece& piece = place.pieces[static_cast<size_t>(holder)];
      if (!Same(piece, own)) Add(round.in, in_, {matrix, piece, holder, 0});
      const auto wanted = [&](int rank) {
        return rank != owner && Same(place.pieces[static_cast<size_t>(rank)], piece);
      };
      for (int rank = 0; rank < static_cast<int>(total_.size()); ++rank) {
        if (!wanted(rank)) continue;
        Add(round.out, out_, {matrix, piece, owner, 0});
        break;
      }
    }
  }

  static void Add(std::vector<MatrixMove>& moves, std::vector<int64_t>& slots, MatrixMove move) {
    int64_t& end = slots[static_cast<size_t>(move.from)];
    move.at = end;
    end += move.piece.elems;
    moves.push_back(move);
  }

  const std::span<const MatrixPlace> matrices_;
  std::vector<int64_t> total_;  // elements each rank owns, of all rounds
  std::vector<int64_t> load_;   // and of this one
  std::vector<int64_t> in_;     // elements in each rank's slot
  std::vector<int64_t> out_;
};

}  // namespace

std::vector<MuonRound> PlanMuon(std::span<const MatrixPlace> matrices, std::span<const int> in_use,
                                int ranks, int64_t round_elems) {
  Planner planner(matrices, ranks);
  std::vector<MuonRound> rounds;
  std::vector<int> round;
  int64_t elems = 0;
  for (int matrix : in_use) {
    const MatrixPlace& place = matrices[static_cast<size_t>(matrix)];
    const bool fits =
        elems + place.elems <= round_elems &&
        (round.empty() || matrices[static_cast<size_t>(round.front())].kind == place.kind);
    if (!round.empty() && !fits) {
      rounds.push_back(planner.Round(std::move(round)));
      round = {};
      elems = 0;
    }
    round.push_back(matrix);
    elems += place.elems;
  }
  if (!round.empty()) rounds.push_back(planner.Round(std::move(round)));
  return rounds;
}

}  // namespace sherd
