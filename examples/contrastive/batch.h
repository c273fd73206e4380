#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contrastive/pairs.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/ranking_loss.h"

namespace contrastive {

// This rank's pairs of a step, as the texts that go through the encoder.
//
// Rows are queries, documents and negatives together, the shorter texts first, so that a call pads
// little; they are cut into calls side by side.
struct Batch {
  int64_t pairs = 0;
  std::vector<std::vector<int64_t>> texts;  // of each call: the number of each row's text
  std::vector<std::vector<int64_t>>
      samples;  // and of its dropout, which no other row of the run has
  // Rows of the pairs' queries, documents and negatives in the order of the pairs: i64.
  sherd::Tensor queries, documents, negatives;
  sherd::RankingIds ids;  // the numbers of the texts

  int64_t calls() const { return static_cast<int64_t>(texts.size()); }
};

// Makes the batch of some pairs. There are `calls`, or one for each row where those are fewer.
// `tokens` are those of each text of the set.
Batch MakeBatch(const PairSet& set, std::span<const std::vector<int64_t>> tokens,
                std::span<const int64_t> which, int64_t calls, const sherd::Device& device);

// The part of `window` that one rank takes: consecutive, and at most one longer than another's.
std::span<const int64_t> PartOf(std::span<const int64_t> window, int rank, int size);

}  // namespace contrastive
