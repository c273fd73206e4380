#include "sherd/runtime/comm/internal/survivors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "sherd/runtime/comm/internal/rendezvous.h"

namespace sherd::internal {
namespace {

constexpr absl::Duration kAskAgain = absl::Milliseconds(20);

std::string HereKey(int rank) { return absl::StrCat("survivors/here/", rank); }
constexpr char kCount[] = "survivors/count";
constexpr char kDecision[] = "survivors/decision";  // "0 2 ": the ranks that go on

absl::Status Gone(const absl::Status& status) {
  return absl::UnavailableError(
      absl::StrCat("survivors cannot meet: ", std::string(status.message()),
                   "; a store that rank 0 serves goes with it: keep the store elsewhere and give "
                   "it to FromStore"));
}

// The decision, made here if nobody has made it when the wait is over.
absl::StatusOr<std::string> Decide(Store& store, int size, const RegroupOptions& options) {
  const int64_t expected = options.expected_ranks > 0 ? options.expected_ranks : size;
  const absl::Time deadline = absl::Now() + options.wait;
  for (;;) {
    absl::StatusOr<std::optional<std::string>> decision = store.TryGet(kDecision);
    if (!decision.ok()) return decision.status();
    if (decision->has_value()) return **decision;
    absl::StatusOr<int64_t> came = store.Add(kCount, 0);
    if (!came.ok()) return came.status();
    if (*came >= expected || absl::Now() >= deadline) break;
    absl::SleepFor(kAskAgain);
  }
  std::string ranks;
  for (int r = 0; r < size; ++r) {
    absl::StatusOr<std::optional<std::string>> here = store.TryGet(HereKey(r));
    if (!here.ok()) return here.status();
    if (here->has_value()) absl::StrAppend(&ranks, r, " ");
  }
  return store.CompareSet(kDecision, "", ranks);
}

}  // namespace

absl::StatusOr<Survivors> AgreeOnSurvivors(Store& store, int rank, int size,
                                           const RegroupOptions& options) {
  const std::string host = HostKey();
  if (absl::Status status = store.Set(HereKey(rank), host); !status.ok()) return Gone(status);
  if (absl::StatusOr<int64_t> count = store.Add(kCount, 1); !count.ok()) {
    return Gone(count.status());
  }
  absl::StatusOr<std::string> decision = Decide(store, size, options);
  if (!decision.ok()) return Gone(decision.status());
  Survivors survivors;
  std::istringstream in(*decision);
  for (int r = 0; in >> r;) survivors.ranks.push_back(r);
  const int came = static_cast<int>(survivors.ranks.size());
  const std::string names = absl::StrJoin(survivors.ranks, ", ");
  const int needed = options.min_ranks > 0 ? options.min_ranks : size / 2 + 1;
  if (came < needed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks [", names, "] of ", size, " came to form a new world; ", needed, " are needed"));
  }
  const auto own = std::find(survivors.ranks.begin(), survivors.ranks.end(), rank);
  if (own == survivors.ranks.end()) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " came too late: ranks [",
                                                      names, "] of ", size,
                                                      " have formed a new world"));
  }
  survivors.rank = static_cast<int>(own - survivors.ranks.begin());
  survivors.local_size = 0;
  std::set<std::string> hosts;
  for (int r : survivors.ranks) {
    absl::StatusOr<std::string> there = store.Get(HereKey(r), absl::ZeroDuration());
    if (!there.ok()) return Gone(there.status());
    hosts.insert(*there);
    if (*there != host) continue;
    if (r < rank) ++survivors.local_rank;
    ++survivors.local_size;
  }
  survivors.hosts = static_cast<int>(hosts.size());
  return survivors;
}

}  // namespace sherd::internal
