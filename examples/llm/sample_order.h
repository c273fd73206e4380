#pragma once

#include <cstdint>

#include "data/order.h"

namespace llm {

using data::Permutation;

// Which part of the training text the n-th sample of a run is.
//
// Each epoch cuts the text side by side into windows, from a place of its own within the first
// window's length, and visits every window once in an order of its own. Everything follows from the
// seed and the sample's global index, so neither the number of ranks nor of micro-batches matters,
// and a run that resumes needs no state.
class SampleOrder {
 public:
  // REQUIRES: bytes > seq >= 1.
  SampleOrder(int64_t bytes, int64_t seq, uint64_t seed);

  // Samples an epoch has.
  int64_t windows() const { return windows_; }
  // Where sample `index` begins; its window of seq + 1 bytes lies inside the text.
  int64_t Start(int64_t index) const;

 private:
  int64_t seq_;
  uint64_t seed_;
  int64_t windows_;
  int64_t spare_;  // bytes by which an epoch may begin later
};

}  // namespace llm
