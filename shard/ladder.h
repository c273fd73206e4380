#pragma once

#include <cstdint>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/axes.h"
#include "sherd/shard/layout.h"

namespace sherd {

// The memory of one unit's parameters: from the pieces this rank owns up to the whole.
//
// [Note: a ladder of stores]
// A rung holds the parameters at one level of the cuts (see axes.h). The lowest rung is the pieces
// this rank owns, in the parameters' own dtype; the highest is the whole, in the dtype of the
// compute. In between there may be one where parameters are kept between steps although the
// optimizer's pieces are smaller, and one that a forward leaves behind for its backward. A gather
// climbs from the highest rung that holds the wanted version: a cast where dtypes differ, then one
// all-gather for each axis, each in place in the next rung's memory. Nothing is copied but what a
// cast must write; where rungs would hold the same bytes they are the same memory.
class Ladder {
 public:
  struct Options {
    std::vector<DType> gathered;  // dtype of the whole, for each segment
    bool offload = false;         // the owned pieces are host memory, whatever the device
  };
  // Ownership: layout and axes outlive the ladder. `owner` explains reads of absent parameters.
  Ladder(const Layout& layout, const UnitAxes& axes, Options options, const Device& device,
         const StorageOwner* owner);
  ~Ladder();
  Ladder(const Ladder&) = delete;
  Ladder& operator=(const Ladder&) = delete;

  // The pieces this rank owns, and the whole, of one segment.
  const Tensor& shard(size_t segment) const { return shards_[segment]; }
  const Ref<Storage>& full(size_t segment) const { return rungs_.back().stores[segment]; }
  DType gathered(size_t segment) const { return options_.gathered[segment]; }
  // Whether the whole is kept between calls and steps, and only refreshed when it is out of date.
  bool keeps_full() const { return rungs_.back().kept; }

  // Takes the memory for a gather of `version`. Returns whether the climb communicates, so that it
  // belongs on a stream. Errors: kResourceExhausted, with nothing taken.
  bool Prepare(int64_t version);
  // Bytes of the buffers that the prepared climb fills by all-gathers.
  int64_t climb_bytes() const;
  // Climbs. Threads: any one, after Prepare and before the next. COLLECTIVE over the unit's ranks.
  void Climb(const ErrorContext& what);
  // Frees what a call gathered; with `park` keeps what a forward leaves for its backward. REQUIRES:
  // no climb runs.
  void Drop(bool park);
  // After a failed climb: no rung above the owned pieces is right.
  void Invalidate();

 private:
  struct Rung {
    int level = 0;
    bool kept = false;     // between steps
    int64_t version = -1;  // of what it holds; -1: nothing
    std::vector<Ref<Storage>> stores;
  };
  void MakeStores(size_t segment);
  // Elements of one piece of a segment at a level.
  int64_t Elems(size_t segment, int level) const;
  void ClimbOne(size_t segment, const Rung& from, const Rung& to, const ErrorContext& what) const;

  const Layout& layout_;
  const UnitAxes& axes_;
  const Options options_;
  const Device device_;
  std::vector<Tensor> shards_;
  std::vector<Rung> rungs_;  // lowest first
  size_t climb_from_ = 0;
};

}  // namespace sherd
