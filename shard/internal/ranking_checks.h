#pragma once

#include "sherd/shard/ranking_loss.h"

namespace sherd::internal {

// Embeddings shorter than this have no direction: normalising them would only scale them.
inline constexpr double kLeastLength = 1e-12;

// What all ranks have agreed on.
struct RankingBatch {
  int64_t columns = 0;  // C
  int64_t pairs = 0;    // of all ranks
  int64_t negatives = 0;
  int64_t own_pairs = 0;
  int64_t first_pair = 0;  // of this rank, among all
  bool query_ids = false, document_ids = false, negative_ids = false;
};

// Compares what the ranks want to rank, and looks at this rank's values. COLLECTIVE. Errors: those
// of RankingLoss, on all ranks.
RankingBatch AgreeOnRanking(const RankingEmbeddings& embeddings, const RankingOptions& options,
                            const RankingIds& ids, ProcessGroup& group, CallSite site);

}  // namespace sherd::internal
