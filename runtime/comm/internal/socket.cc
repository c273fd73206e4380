#include "sherd/runtime/comm/internal/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sherd/runtime/comm/internal/host_address.h"

namespace sherd::internal {
namespace {

std::string ErrorText(int error) { return std::generic_category().message(error); }

// Waits until `events` or an error is there. False when the deadline came first.
bool PollUntil(int fd, short events, absl::Time deadline) {
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    pollfd entry{fd, events, 0};
    const int rc = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (rc > 0) return true;
    if (rc == 0 && absl::Now() >= deadline) return false;
  }
}

absl::Status ConnectOne(int fd, const addrinfo& address, absl::Time deadline) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return absl::UnavailableError(ErrorText(errno));
  if (!PollUntil(fd, POLLOUT, deadline)) return absl::DeadlineExceededError("no answer");
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(ErrorText(error));
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Socket> Dial(const std::string& host, int port, absl::Time deadline) {
  absl::StatusOr<Addresses> addresses = Resolve(host, port, SOCK_STREAM, AI_NUMERICSERV);
  if (!addresses.ok()) return addresses.status();
  int untried = 0;
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) ++untried;
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next, --untried) {
    Socket socket(
        ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
    if (!socket) {
      last = absl::UnavailableError(ErrorText(errno));
      continue;
    }
    const absl::Time now = absl::Now();
    last = ConnectOne(socket.fd(), *a, now + (deadline - now) / untried);
    if (!last.ok()) continue;
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return socket;
  }
  return absl::Status(last.code(), absl::StrCat("cannot connect to ", HostPort(host, port), ": ",
                                                std::string(last.message())));
}

absl::StatusOr<Socket> ListenOn(const std::string& address, int port) {
  absl::StatusOr<Addresses> addresses =
      Resolve(address, port, SOCK_STREAM, AI_NUMERICSERV | AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  const addrinfo* a = addresses->get();
  Socket socket(
      ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
  const int on = 1;
  // An IPv6 socket takes IPv6 alone: another one takes IPv4 where that is wanted.
  if (socket && a->ai_family == AF_INET6) {
    setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  }
  if (!socket || setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(socket.fd(), a->ai_addr, a->ai_addrlen) != 0 || listen(socket.fd(), 1024) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", HostPort(address, port), ": ", ErrorText(errno)));
  }
  return socket;
}

int LocalPort(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string LocalAddress(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return NumericAddress(reinterpret_cast<const sockaddr*>(&address), length);
}

absl::Status SendAll(const Socket& socket, std::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && errno == EAGAIN) {
      if (!PollUntil(socket.fd(), POLLOUT, deadline)) {
        return absl::DeadlineExceededError("the peer does not take data");
      }
    } else if (sent < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the connection ended: ", ErrorText(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(const Socket& socket, void* out, int64_t bytes, absl::Time deadline) {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = recv(socket.fd(), at, static_cast<size_t>(bytes), 0);
    if (got > 0) {
      at += got;
      bytes -= got;
    } else if (got == 0) {
      return absl::UnavailableError("the connection was closed by the peer");
    } else if (errno == EAGAIN) {
      if (!PollUntil(socket.fd(), POLLIN, deadline)) {
        return absl::DeadlineExceededError("the peer does not answer");
      }
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the connection ended: ", ErrorText(errno)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Socket> SocketPool::Take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      Socket socket = std::move(idle_.back());
      idle_.pop_back();
      return socket;
    }
  }
  return dial_();
}

void SocketPool::GiveBack(Socket socket) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(socket));
}

}  // namespace sherd::internal
