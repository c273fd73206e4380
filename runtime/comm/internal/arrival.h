#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sherd/runtime/comm/store.h"

namespace sherd::internal {

// Returns when all `size` ranks have called this with the same `name`, which must not be used
// twice.
//
// `limit` is what the error calls the time limit that `deadline` comes from.
// COLLECTIVE. Cost: a few store calls a rank, whatever the size.
// Errors: kDeadlineExceeded naming the ranks that did not come, the same on all ranks, also on
// those
//   that come later; the store's errors.
absl::Status AwaitArrival(Store& store, const std::string& name, int rank, int size,
                          absl::Time deadline, absl::Duration limit);

// "rank 3" or "ranks 1, 2".
std::string RankList(const std::set<int>& ranks);

}  // namespace sherd::internal
