#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "sherd/runtime/comm/internal/store_wire.h"
#include "sherd/runtime/comm/store.h"

namespace sherd::internal {

// One client's conversation with the store's server: bytes in, bytes out. Knows no sockets.
//
// Before the client has shown the secret nothing is read but the greeting, nothing longer than one
// is kept, and the table is not touched. Every length is checked against its limit before anything
// of that size is kept.
// Ownership: borrows the secret and the table.
// Threads: one at a time.
class StoreSession {
 public:
  using Clock = std::chrono::steady_clock;

  StoreSession(std::string_view secret, Store& table) : secret_(secret), table_(table) {}

  // Takes what the client sent, at most room() bytes, and answers what is whole.
  // Returns false when the client broke the protocol: it gets no answer, only the end.
  bool Receive(std::string_view bytes, Clock::time_point now);
  // Answers what may have become answerable: a wait whose key has come or whose time is up, and
  // what was sent after that. Returns as Receive.
  bool Resume(Clock::time_point now);

  // How many bytes may come now. 0 while the client waits for a key, or has much to fetch first.
  size_t room() const;
  bool trusted() const { return trusted_; }
  // It is to be closed once `output` is sent.
  bool closing() const { return closing_; }
  bool waiting() const { return waiting_; }
  // What is to be sent; the caller removes what was.
  std::string& output() { return output_; }
  const std::string& output() const { return output_; }

 private:
  bool CheckSecret();
  bool Process(Clock::time_point now);
  void Answer(const StoreRequest& request, Clock::time_point now);

  const std::string_view secret_;
  Store& table_;
  std::string input_;
  std::string output_;
  bool trusted_ = false;
  bool closing_ = false;
  bool waiting_ = false;  // a kGet for a key that does not exist yet
  std::string awaited_;
  Clock::time_point wait_until_;
};

}  // namespace sherd::internal
