#include "sherd/runtime/comm/internal/herald.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/thread.h"

namespace sherd::internal {

struct Herald::State {
  explicit State(std::shared_ptr<Store> store) : store(std::move(store)) {}

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      asked.wait(lock, [this] { return busy || stop; });
      if (!busy) return;
      const std::function<void(Store&)> now = std::move(question);
      lock.unlock();
      now(*store);
      lock.lock();
      busy = false;
      answered.notify_all();
    }
  }

  const std::shared_ptr<Store> store;
  std::mutex mutex;
  std::condition_variable asked;
  std::condition_variable answered;
  std::function<void(Store&)> question;
  bool busy = false;  // from asked to answered
  bool stop = false;
};

namespace {

absl::Status Silent(const std::string& key) {
  return absl::DeadlineExceededError(absl::StrCat("the store does not answer for '", key, "'"));
}

}  // namespace

Herald::Herald(std::shared_ptr<Store> store)
    : state_(std::make_shared<State>(std::move(store))),
      thread_(StartThread([state = state_] { state->Run(); }, "sherd/herald")) {}

Herald::~Herald() {
  bool busy = false;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop = true;
    busy = state_->busy;
  }
  state_->asked.notify_all();
  if (busy) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

// Returns whether `question` was answered within `limit`, of which it may wait `queue` for an
// earlier one to end.
bool Herald::Ask(const std::function<void(Store&)>& question, absl::Duration limit,
                 absl::Duration queue) {
  const auto now = std::chrono::steady_clock::now();
  const auto idle = [this] { return !state_->busy; };
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (!state_->answered.wait_until(lock, now + absl::ToChronoMilliseconds(queue), idle)) {
    return false;
  }
  state_->question = question;
  state_->busy = true;
  state_->asked.notify_all();
  return state_->answered.wait_until(lock, now + absl::ToChronoMilliseconds(limit), idle);
}

absl::StatusOr<std::optional<std::string>> Herald::TryGet(const std::string& key,
                                                          absl::Duration limit) {
  using Answer = absl::StatusOr<std::optional<std::string>>;
  const auto answer = std::make_shared<Answer>(Silent(key));
  if (!Ask([answer, key](Store& store) { *answer = store.TryGet(key); }, limit,
           absl::ZeroDuration())) {
    return Silent(key);
  }
  return *answer;
}

absl::Status Herald::Set(const std::string& key, const std::string& value, absl::Duration limit) {
  const auto answer = std::make_shared<absl::Status>();
  if (!Ask([answer, key, value](Store& store) { *answer = store.Set(key, value); }, limit, limit)) {
    return Silent(key);
  }
  return *answer;
}

absl::Status Herald::SetFirst(const std::string& key, const std::string& value,
                              absl::Duration limit) {
  const auto answer = std::make_shared<absl::Status>();
  const bool told = Ask(
      [answer, key, value](Store& store) { *answer = store.CompareSet(key, "", value).status(); },
      limit, limit);
  return told ? *answer : Silent(key);
}

}  // namespace sherd::internal
