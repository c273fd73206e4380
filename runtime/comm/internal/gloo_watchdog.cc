// The part of GlooLink that runs on its watchdog thread.
#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/comm/internal/arrival.h"
#include "sherd/runtime/comm/internal/gloo_link.h"

namespace sherd::internal {
namespace {

constexpr std::chrono::milliseconds kTick{20};
constexpr std::chrono::milliseconds kStorePoll{200};
// How long a peer that broke its connection has to have published a reason.
constexpr std::chrono::milliseconds kGrace{150};
// How long a rank that cannot say why it failed keeps its connections.
constexpr std::chrono::milliseconds kFarewell{400};
constexpr char kFailureKey[] = "failure";
// How long the watchdog waits for the store. Rank 0, which serves it, may be the one that is
// stopped.
constexpr absl::Duration kAnswer = absl::Milliseconds(300);
// How long a rank that leaves in order tries to say so.
constexpr absl::Duration kGoodbye = absl::Seconds(2);

}  // namespace

void GlooLink::Watch() {
  auto next_poll = std::chrono::steady_clock::now() + kStorePoll;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (publish_failure_) {
      publish_failure_ = false;
      const absl::Status failure = failure_;
      lock.unlock();
      // Nobody can read the reason. Peers are to see for themselves who broke first, so our own
      // connections stay a little longer.
      if (!Publish(failure)) std::this_thread::sleep_for(kFarewell);
      lock.lock();
      continue;
    }
    if (stop_) break;
    if (!failure_.ok()) {
      if (running_ == 0 && !closed_) {
        closed_ = true;
        lock.unlock();
        context_->closeConnections();
        lock.lock();
        continue;
      }
      wake_watchdog_.wait(
          lock, [this] { return stop_ || publish_failure_ || (running_ == 0 && !closed_); });
      continue;
    }
    ExpireDeadlines();
    hurry_ = false;
    const bool ask_store = suspect_ || std::chrono::steady_clock::now() >= next_poll;
    if (ask_store) next_poll = std::chrono::steady_clock::now() + kStorePoll;
    lock.unlock();
    CheckPeers(ask_store);
    lock.lock();
    wake_watchdog_.wait_for(lock, kTick, [this] { return stop_ || !failure_.ok() || hurry_; });
  }
  const bool failed = !failure_.ok();
  lock.unlock();
  if (!failed) static_cast<void>(herald_.Set(absl::StrCat("left/", rank_), "1", kGoodbye));
}

void GlooLink::ExpireDeadlines() {
  const auto now = std::chrono::steady_clock::now();
  for (Channel& channel : channels_) {
    if (!channel.running || now < channel.deadline) continue;
    channel.expired = true;
    // The collective wakes, says what it waited for and fails the link. It may have been between
    // two waits, so this is done again at each look until it has.
    for (gloo::transport::UnboundBuffer* buffer : waiting_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
}

void GlooLink::CheckPeers(bool ask_store) {
  if (ask_store && ConsultStore()) return;
  std::set<int> broken;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    auto& sentinel = sentinels_[static_cast<size_t>(peer)];
    sentinel->abortWaitRecv();  // so that the wait only tells whether the connection is whole
    try {
      sentinel->waitRecv(kForever);
    } catch (const std::exception&) {
      broken.insert(peer);
    }
  }
  bool suspect = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    suspect = suspect_;
  }
  const bool news = std::any_of(broken.begin(), broken.end(),
                                [this](int peer) { return left_.count(peer) == 0; });
  if (news || (suspect && !broken.empty())) DecideLoss(broken);
}

void GlooLink::DecideLoss(const std::set<int>& broken) {
  const auto until = std::chrono::steady_clock::now() + kGrace;
  std::set<int> lost;
  for (;;) {
    if (ConsultStore()) return;
    lost.clear();
    for (int peer : broken) {
      if (!HasLeft(peer)) lost.insert(peer);
    }
    if (lost.empty() || store_lost_ || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!lost.empty()) {
    FailLocked(absl::UnavailableError(absl::StrCat("rank ", rank_, " lost the connection to ",
                                                   RankList(lost), ": the process ended or its ",
                                                   "host is out of reach", WhereaboutsLocked())),
               /*publish=*/true);
  } else if (suspect_) {
    FailLocked(absl::UnavailableError(absl::StrCat(RankList(broken), " left the group of ", size_,
                                                   " while rank ", rank_, " still waited for it",
                                                   WhereaboutsLocked())),
               /*publish=*/true);
  }
}

bool GlooLink::HasLeft(int peer) {
  if (left_.count(peer) != 0) return true;
  if (store_lost_) return false;
  auto left = herald_.TryGet(absl::StrCat("left/", peer), kAnswer);
  if (!left.ok()) {
    store_lost_ = !absl::IsDeadlineExceeded(left.status());
    return false;
  }
  if (left->has_value()) left_.insert(peer);
  return left->has_value();
}

bool GlooLink::ConsultStore() {
  if (store_lost_) return false;
  absl::StatusOr<std::optional<std::string>> published = herald_.TryGet(kFailureKey, kAnswer);
  if (!published.ok()) {
    // Its host's own connection tells more; one that only does not answer may yet.
    store_lost_ = !absl::IsDeadlineExceeded(published.status());
    return false;
  }
  if (!published->has_value()) return false;
  // "<code>\n<message>"
  const std::string& text = **published;
  const size_t line = text.find('\n');
  int code = 0;
  if (line == std::string::npos || !absl::SimpleAtoi(text.substr(0, line), &code)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  FailLocked(absl::Status(static_cast<absl::StatusCode>(code), text.substr(line + 1)),
             /*publish=*/false);
  return true;
}

bool GlooLink::Publish(const absl::Status& status) {
  if (store_lost_) return false;
  std::string message(status.message());
  message.resize(std::min<size_t>(message.size(), 64 * 1024));
  return herald_
      .SetFirst(kFailureKey, absl::StrCat(static_cast<int>(status.code()), "\n", message), kAnswer)
      .ok();
}

}  // namespace sherd::internal
