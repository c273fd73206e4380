#pragma once

#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sherd/runtime/comm/store.h"

namespace sherd::internal {

// How long to wait for others.
struct Patience {
  // From now on, `limit` long. `should_stop` may be empty.
  explicit Patience(absl::Duration limit, std::function<bool()> should_stop = {});

  absl::Duration left() const;  // never negative
  bool stopped() const { return should_stop && should_stop(); }

  absl::Time deadline;
  absl::Duration limit;               // what errors call it
  std::function<bool()> should_stop;  // asked every 50 ms: whether to give up
};

// store.Get within what is left of `patience`. Errors: as Get; kCancelled when told to stop.
absl::StatusOr<std::string> GetPatiently(Store& store, const std::string& key,
                                         const Patience& patience);

// Returns when all `size` ranks have called this with the same `name`, which must not be used
// twice.
//
// COLLECTIVE. Cost: a few store calls a rank, whatever the size; more with should_stop.
// Errors: kDeadlineExceeded naming the ranks that did not come, or kCancelled naming them and the
//   rank that was told to stop: the same on all ranks, also on those that come later; the store's
//   errors.
absl::Status AwaitArrival(Store& store, const std::string& name, int rank, int size,
                          const Patience& patience);

// "rank 3" or "ranks 1, 2".
std::string RankList(const std::set<int>& ranks);

}  // namespace sherd::internal
