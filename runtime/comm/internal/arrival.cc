#include "sherd/runtime/comm/internal/arrival.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace sherd::internal {

std::string RankList(const std::set<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

namespace {

constexpr absl::Duration kAskAgain = absl::Milliseconds(50);
constexpr char kComplete[] = "1";
constexpr char kStopped[] = " was told to stop while it waited for ";

// A verdict is kComplete, or what the first rank that gave up says: one for all ranks.
absl::Status Outcome(const absl::StatusOr<std::string>& verdict) {
  if (!verdict.ok()) return verdict.status();
  if (*verdict == kComplete) return absl::OkStatus();
  if (verdict->find(kStopped) != std::string::npos) return absl::CancelledError(*verdict);
  return absl::DeadlineExceededError(*verdict);
}

}  // namespace

Patience::Patience(absl::Duration limit, std::function<bool()> should_stop)
    : deadline(absl::Now() + limit), limit(limit), should_stop(std::move(should_stop)) {}

absl::Duration Patience::left() const {
  return std::max(deadline - absl::Now(), absl::ZeroDuration());
}

absl::StatusOr<std::string> GetPatiently(Store& store, const std::string& key,
                                         const Patience& patience) {
  if (!patience.should_stop) return store.Get(key, patience.left());
  for (;;) {
    const absl::Duration left = patience.left();
    absl::StatusOr<std::string> value = store.Get(key, std::min(left, kAskAgain));
    if (value.status().code() != absl::StatusCode::kDeadlineExceeded) return value;
    if (patience.stopped()) return absl::CancelledError("told to stop");
    if (left <= kAskAgain) return value;
  }
}

absl::Status AwaitArrival(Store& store, const std::string& name, int rank, int size,
                          const Patience& patience) {
  auto key = [&](int r) { return absl::StrCat(name, "/", r); };
  if (absl::Status status = store.Set(key(rank), "1"); !status.ok()) return status;
  absl::StatusOr<int64_t> arrived = store.Add(absl::StrCat(name, "/count"), 1);
  if (!arrived.ok()) return arrived.status();
  const std::string verdict = absl::StrCat(name, "/verdict");
  if (*arrived == size) return Outcome(store.CompareSet(verdict, "", kComplete));
  absl::StatusOr<std::string> outcome = GetPatiently(store, verdict, patience);
  const bool stopped = outcome.status().code() == absl::StatusCode::kCancelled;
  if (!stopped && outcome.status().code() != absl::StatusCode::kDeadlineExceeded) {
    return Outcome(outcome);
  }
  std::set<int> missing;
  for (int peer = 0; peer < size; ++peer) {
    absl::StatusOr<std::optional<std::string>> here = store.TryGet(key(peer));
    if (!here.ok()) return here.status();
    if (!here->has_value()) missing.insert(peer);
  }
  if (missing.empty()) {
    return Outcome(store.CompareSet(verdict, "", kComplete));  // the last came just now
  }
  const std::string names = absl::StrCat(RankList(missing), " of ", size);
  return Outcome(store.CompareSet(verdict, "",
                                  stopped ? absl::StrCat("rank ", rank, kStopped, names)
                                          : absl::StrCat(names, " did not arrive within ",
                                                         absl::FormatDuration(patience.limit))));
}

}  // namespace sherd::internal
