#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/comm/store.h"
#include "sherd/runtime/comm/world.h"

namespace sherd::internal {

// Who goes on, as one of them sees it.
struct Survivors {
  std::vector<int> ranks;  // of the failed world, ascending; the place is the rank in the new one
  int rank = 0;            // of ours there
  int local_rank = 0;      // among those of this host
  int local_size = 1;
  int hosts = 1;  // of all of them
};

// Agrees with the ranks of a failed world of `size` that call this on who goes on.
//
// `store` holds nothing but what this generation's callers write. The first whose wait ends, or who
// sees all that are expected, decides for all: whoever comes later is not among them.
// COLLECTIVE. Errors: kFailedPrecondition for too few, and on a rank that came too late;
//   kUnavailable when the store is gone. REQUIRES: 0 <= rank < size.
absl::StatusOr<Survivors> AgreeOnSurvivors(Store& store, int rank, int size,
                                           const RegroupOptions& options);

}  // namespace sherd::internal
