#include "sherd/runtime/comm/internal/arrival.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace sherd::internal {

std::string RankList(const std::set<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

namespace {

absl::Status Outcome(const absl::StatusOr<std::string>& verdict) {
  if (!verdict.ok()) return verdict.status();
  return *verdict == "1" ? absl::OkStatus() : absl::DeadlineExceededError(*verdict);
}

}  // namespace

absl::Status AwaitArrival(Store& store, const std::string& name, int rank, int size,
                          absl::Time deadline, absl::Duration limit) {
  auto key = [&](int r) { return absl::StrCat(name, "/", r); };
  if (absl::Status status = store.Set(key(rank), "1"); !status.ok()) return status;
  absl::StatusOr<int64_t> arrived = store.Add(absl::StrCat(name, "/count"), 1);
  if (!arrived.ok()) return arrived.status();
  // "1" once all have come, or what the first rank that gave up says: one verdict for all ranks.
  const std::string verdict = absl::StrCat(name, "/verdict");
  if (*arrived == size) return Outcome(store.CompareSet(verdict, "", "1"));
  absl::StatusOr<std::string> outcome =
      store.Get(verdict, std::max(deadline - absl::Now(), absl::ZeroDuration()));
  if (outcome.status().code() != absl::StatusCode::kDeadlineExceeded) return Outcome(outcome);
  std::set<int> missing;
  for (int peer = 0; peer < size; ++peer) {
    absl::StatusOr<std::optional<std::string>> here = store.TryGet(key(peer));
    if (!here.ok()) return here.status();
    if (!here->has_value()) missing.insert(peer);
  }
  if (missing.empty())
    return Outcome(store.CompareSet(verdict, "", "1"));  // the last came just now
  return Outcome(
      store.CompareSet(verdict, "",
                       absl::StrCat(RankList(missing), " of ", size, " did not arrive within ",
                                    absl::FormatDuration(limit))));
}

}  // namespace sherd::internal
