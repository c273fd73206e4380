#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "contrastive/pairs.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/tensor.h"

namespace contrastive {

// How well documents are found by their queries, over all pairs of a set.
struct Retrieval {
  double recall_1 = 0.0;   // queries whose document comes first
  double recall_10 = 0.0;  // whose document is among the first ten
  double mrr = 0.0;        // mean of 1 / place, the first being 1

  // {"recall@1", ...}, as a step's measures.
  std::map<std::string, double> Measures() const;
};

// Ranks, for the query of each pair, all documents of the set by their product with it.
//
// A place counts the other documents that score as much or more, so that embeddings that are all
// alike find nothing; the same document in several pairs is one, and documents of other pairs with
// the same query are not counted: they answer it too. `begin` and `end` are this rank's
// pairs, which all ranks' together are each pair of the set once; the result is the same on all.
// Shapes: embeddings [texts of the set, C], of length 1 for cosines; scores are f32. COLLECTIVE.
// Memory: [own pairs, documents] scores.
Retrieval MeasureRetrieval(const PairSet& set, int64_t begin, int64_t end,
                           const sherd::Tensor& embeddings, sherd::ProcessGroup& group);

}  // namespace contrastive
