#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/order.h"

namespace data {

// The samples of each micro-batch that one rank takes of a window, cut at `ranges` (see
// CutMicroBatches). REQUIRES: the ranges lie inside; 0 <= rank < size.
std::vector<std::vector<int64_t>> MicroBatchesOf(std::span<const int64_t> window,
                                                 const std::vector<Range>& ranges, int rank,
                                                 int size);

// The numbers begin, begin + 1, ..., end - 1: the window of an evaluation, which has no order.
std::vector<int64_t> Numbers(int64_t begin, int64_t end);

// Which samples one rank takes next, window after window, without end.
//
// Each window, one optimizer step, takes the next samples of the global order and is cut into
// micro-batches, which go round the ranks; so the samples of a window do not depend on the number
// of ranks. The last window of an epoch may be shorter, and ranks may get fewer micro-batches than
// others, or none.
class Turns {
 public:
  // Cuts the samples of a window, given in order.
  using Cut = std::function<std::vector<Range>(std::span<const int64_t> window)>;

  // Begins at `at` of `order`. REQUIRES: window >= 1 samples; 0 <= rank < size.
  Turns(const Order& order, Cursor at, int64_t window, Cut cut, int rank, int size);

  // The samples of the next micro-batch; nothing where a window ends on this rank, and the next
  // call goes on with the next window.
  std::optional<std::vector<int64_t>> operator()();
  // Where the next window begins.
  Cursor next() const { return at_; }

 private:
  const Order order_;
  Cursor at_;
  const int64_t window_;
  const Cut cut_;
  const int rank_;
  const int size_;
  bool open_ = false;
  std::vector<std::vector<int64_t>> mine_;  // of the open window
  size_t taken_ = 0;
};

}  // namespace data
