#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/runtime/comm/store.h"

namespace sherd::internal {

// Talks to a store for a watchdog, which must never wait long: the process that serves the store
// may be the one that is stopped, and then it does not answer, nor does its connection break.
//
// Calls are made on a thread of its own. One that is not answered within its limit goes on there.
// Until it has ended, further reads are refused at once, and further writes within their limit.
// Threads: one caller; starts one thread, which blocks all signals. The destructor does not wait
// for a call that is not answered: its thread ends by itself, and holds the store until then.
// Errors: the store's; kDeadlineExceeded when there is no answer in time.
class Herald {
 public:
  explicit Herald(std::shared_ptr<Store> store);
  ~Herald();
  Herald(const Herald&) = delete;
  Herald& operator=(const Herald&) = delete;

  absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key, absl::Duration limit);
  absl::Status Set(const std::string& key, const std::string& value, absl::Duration limit);
  // Sets the key unless it exists.
  absl::Status SetFirst(const std::string& key, const std::string& value, absl::Duration limit);

 private:
  struct State;
  bool Ask(const std::function<void(Store&)>& question, absl::Duration limit, absl::Duration queue);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace sherd::internal
