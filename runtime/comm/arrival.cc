#include "sherd/runtime/comm/arrival.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sherd::internal {

std::string RankList(const std::set<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::Status AwaitArrival(Store& store, const std::string& name, int rank, int size,
                          absl::Duration timeout) {
  auto key = [&](int r) { return absl::StrCat(name, "/", r); };
  if (absl::Status status = store.Set(key(rank), "1"); !status.ok()) return status;
  absl::StatusOr<int64_t> arrived = store.Add(absl::StrCat(name, "/count"), 1);
  if (!arrived.ok()) return arrived.status();
  const std::string all = absl::StrCat(name, "/all");
  if (*arrived == size) return store.Set(all, "1");
  absl::StatusOr<std::string> complete = store.Get(all, timeout);
  if (complete.ok()) return absl::OkStatus();
  if (complete.status().code() != absl::StatusCode::kDeadlineExceeded) return complete.status();
  std::set<int> missing;
  for (int peer = 0; peer < size; ++peer) {
    absl::StatusOr<std::optional<std::string>> here = store.TryGet(key(peer));
    if (!here.ok()) return here.status();
    if (!here->has_value()) missing.insert(peer);
  }
  if (missing.empty()) return absl::OkStatus();  // the last came just now
  return absl::DeadlineExceededError(absl::StrCat(RankList(missing), " of ", size,
                                                  " did not arrive within ",
                                                  absl::FormatDuration(timeout)));
}

}  // namespace sherd::internal
