#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sherd::internal {

// An owned file descriptor, of a socket as a rule; closed by the destructor. Movable.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Connects to the first address of `host` that answers, IPv4 or IPv6. One that does not answer at
// all uses up its share of the time left, not all of it.
// Errors: kUnavailable with the reasons of all addresses; kDeadlineExceeded.
absl::StatusOr<Socket> Dial(const std::string& host, int port, absl::Time deadline);

// A listening socket. Port 0 picks a free one. Errors: kUnavailable with the system's reason.
absl::StatusOr<Socket> ListenOn(const std::string& address, int port);

// The port a socket is bound to.
int LocalPort(const Socket& socket);
// The numeric address of this end of a connection, "" when unknown.
std::string LocalAddress(const Socket& socket);

// Send or receive all the bytes. SIGPIPE is never raised.
// Errors: kUnavailable when the connection ended, kDeadlineExceeded.
absl::Status SendAll(const Socket& socket, std::string_view bytes, absl::Time deadline);
absl::Status ReceiveAll(const Socket& socket, void* out, int64_t bytes, absl::Time deadline);

// Connections to one server for callers that each want one for a while.
//
// Threads: safe.
class SocketPool {
 public:
  // `dial` makes a new connection, ready for requests.
  explicit SocketPool(std::function<absl::StatusOr<Socket>()> dial) : dial_(std::move(dial)) {}
  // An idle connection or a new one. A connection after an error is not to be given back.
  absl::StatusOr<Socket> Take();
  void GiveBack(Socket socket);

 private:
  const std::function<absl::StatusOr<Socket>()> dial_;
  std::mutex mutex_;
  std::vector<Socket> idle_;
};

}  // namespace sherd::internal
