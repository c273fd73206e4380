#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sherd/runtime/core/dtype.h"

namespace sherd {

// What a layout needs to know of one parameter.
//
// Entries of one dtype and trainable class share a segment.
struct LayoutEntry {
  int64_t elems = 0;
  DType dtype = DType::kF32;
  bool trainable = true;
  // So many elements, counted from the entry's first, never lie on two ranks: for optimizers that
  // need whole rows or blocks (k rows of a matrix are k times its row length). The last granule of
  // an entry may be shorter. Costs padding: see LayoutSegment::padding_bound.
  int64_t granule = 1;
};

// Elements [offset, offset + elems) of a segment's flat space.
struct LayoutRange {
  int64_t offset = 0;
  int64_t elems = 0;
};

// Parameters of one dtype and trainable class in a flat space that is cut into one equal chunk for
// each rank.
struct LayoutSegment {
  DType dtype = DType::kF32;
  bool trainable = true;
  int64_t elems = 0;        // of all its parameters
  int64_t chunk_elems = 0;  // of each rank's chunk, the same on all
  // In the order they lie: as given when all granules are equal, else large granules first.
  std::vector<int> entries;
  // What belongs to no parameter, in order and disjoint: gaps before entries that would have a
  // granule on two ranks, and the end. Never part of a piece; whoever allocates fills it with
  // zeros.
  std::vector<LayoutRange> padding;
  // The most elements of padding there can be for such sizes and granules. Below ranks x granule
  // when all granules are equal and every entry is a multiple of it. Otherwise, with L the least
  // common multiple of the granules of those entries that are longer than a chunk and G the largest
  // granule, below ranks x (L + G), or such that a chunk is as long as the longest entry.
  int64_t padding_bound = 0;
  // Elements of the gathered flat space: chunks of all ranks, padding included.
  int64_t padded_elems(int ranks) const { return chunk_elems * ranks; }
};

// The part of one parameter in one rank's chunk; `elems` may be 0.
struct LayoutPiece {
  int64_t offset = 0;        // first element, counted in the parameter
  int64_t chunk_offset = 0;  // first element, counted in the chunk
  int64_t elems = 0;
};

// Where every element of a unit's parameters lives, for one unit and one number of ranks.
//
// The one place that knows offsets, chunks and padding; units, optimizers and saved states ask it.
// Pure arithmetic: no tensors and no communication.
//
// The chunks of all ranks in rank order are the flat space, so an all-gather writes the parameters
// themselves and a reduce-scatter reads their gradients as they lie: nothing is copied in or out.
class Layout {
 public:
  // Cost: in the entries, n log n; independent of the ranks.
  // Errors: kInvalidArgument for ranks < 1, a negative count, a granule < 1, or if a flat space
  //   has more bytes than an int64 counts.
  Layout(std::span<const LayoutEntry> entries, int ranks);

  // As given: how many chunks each segment has, and how many parameters there are.
  int ranks() const { return ranks_; }
  int entries() const { return static_cast<int>(places_.size()); }
  const std::vector<LayoutSegment>& segments() const { return segments_; }
  // The segment of an entry, and the element where it starts there; all of it lies in one stretch.
  int segment_of(int entry) const { return places_[static_cast<size_t>(entry)].segment; }
  int64_t offset_of(int entry) const { return places_[static_cast<size_t>(entry)].offset; }
  int64_t elems_of(int entry) const { return places_[static_cast<size_t>(entry)].elems; }
  // The part of an entry that `rank` owns: whole granules. Over all ranks the pieces of an entry
  // cover it exactly once.
  LayoutPiece PieceOf(int entry, int rank) const;

  // Bytes of one rank's chunks, and of the whole flat spaces, of all segments.
  int64_t shard_bytes() const;
  int64_t full_bytes() const;
  // Bytes of the flat spaces of the trainable segments: one full gradient buffer.
  int64_t gradient_bytes() const;

 private:
  struct Place {
    int segment = 0;
    int64_t offset = 0;
    int64_t elems = 0;
  };
  // Orders, places and pads the entries of a segment.
  void Arrange(LayoutSegment& segment, std::span<const LayoutEntry> entries);

  int ranks_;
  std::vector<Place> places_;
  std::vector<LayoutSegment> segments_;
};

}  // namespace sherd
