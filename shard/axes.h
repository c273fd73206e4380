#pragma once

#include <cstddef>
#include <vector>

namespace sherd {

class ProcessGroup;

// One axis of ranks, as one of them sees it. Each stream has a group of its own.
struct UnitAxis {
  ProcessGroup* gather = nullptr;
  ProcessGroup* reduce = nullptr;
  int size = 1;
  int index = 0;  // of this rank
};

// [Note: cuts]
// A unit's flat space is cut axis by axis: the first axis cuts it into pieces, the second cuts each
// of those, and so on. *Level* n is what the first n axes cut, so level 0 is the whole and the last
// level is what this rank's optimizer updates. Parameters are kept at a level that is no deeper
// than that of the gradients, and gradients at one no deeper than the optimizer's. So every gather
// and every reduction is a walk from one level to another, one collective for each axis between
// them, and each stage of ZeRO is three numbers.
//
// The axes of one unit: those that cut it, and those along which ranks hold the same pieces. Axes
// of one rank are left out. Ownership: the groups belong to the context.
struct UnitAxes {
  std::vector<UnitAxis> cuts;
  std::vector<UnitAxis> replicas;
  // The levels of parameters, of what a forward leaves behind of them, and of gradients.
  int parameter_level = 0;
  int parked_level = 0;
  int gradient_level = 0;
  // Whether the parameters are cut at all, also where the axis has one rank: then they are gathered
  // and freed with each call.
  bool parameters_are_cut = true;

  int levels() const { return static_cast<int>(cuts.size()); }
  // Into how many pieces level `from` is cut at level `to`, and which of them is this rank's.
  // REQUIRES: 0 <= from <= to <= levels().
  int Pieces(int from, int to) const {
    int pieces = 1;
    for (int j = from; j < to; ++j) pieces *= cuts[static_cast<size_t>(j)].size;
    return pieces;
  }
  int Piece(int from, int to) const {
    int piece = 0;
    for (int j = from; j < to; ++j) {
      const UnitAxis& axis = cuts[static_cast<size_t>(j)];
      piece = piece * axis.size + axis.index;
    }
    return piece;
  }
  // Into how many pieces the whole is cut, and which of them this rank owns.
  int pieces() const { return Pieces(0, levels()); }
  int piece() const { return Piece(0, levels()); }
  // Of the ranks that hold the same pieces, whether this is the first: who counts them in a sum
  // over all ranks.
  bool first_replica() const {
    for (const UnitAxis& axis : replicas) {
      if (axis.index != 0) return false;
    }
    return true;
  }
};

}  // namespace sherd
