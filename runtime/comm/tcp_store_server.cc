#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sherd/runtime/base/thread.h"
#include "sherd/runtime/comm/internal/socket.h"
#include "sherd/runtime/comm/internal/store_wire.h"
#include "sherd/runtime/comm/tcp_store.h"

namespace sherd {
namespace {

using internal::Socket;
using internal::StoreOp;
using internal::StoreRequest;
using internal::StoreResponse;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMaxUnsentBytes = size_t{8} << 20;
constexpr int64_t kLongestWaitMs = int64_t{365} * 24 * 3600 * 1000;

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

// One client, as the server's thread sees it.
struct Connection {
  Socket socket;
  std::string input;
  std::string output;
  bool trusted = false;  // has shown the secret
  bool closing = false;  // closed once `output` is sent
  Clock::time_point opened;
  bool waiting = false;  // a kGet for a key that does not exist yet
  std::string awaited;
  Clock::time_point wait_until;
};

StoreResponse Failure(const absl::Status& status) {
  return {.code = status.code(), .value = std::string(status.message())};
}

template <typename T>
StoreResponse Respond(const absl::StatusOr<T>& result) {
  if (!result.ok()) return Failure(result.status());
  if constexpr (std::is_same_v<T, std::string>) {
    return {.value = *result};
  } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
    if (!result->has_value()) return {.code = absl::StatusCode::kNotFound};
    return {.value = **result};
  } else {
    return {.number = static_cast<int64_t>(*result)};
  }
}

StoreResponse Execute(Store& table, const StoreRequest& request) {
  switch (request.op) {
    case StoreOp::kSet:
      return Failure(table.Set(request.key, request.value));
    case StoreOp::kGet:
    case StoreOp::kTryGet:
      return Respond(table.TryGet(request.key));
    case StoreOp::kAdd:
      return Respond(table.Add(request.key, request.number));
    case StoreOp::kCompareSet:
      return Respond(table.CompareSet(request.key, request.expected, request.value));
    case StoreOp::kDelete:
      return Respond(table.Delete(request.key));
  }
  return Failure(absl::InvalidArgumentError("unknown operation"));
}

// Wakes the server's thread from others.
class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  int fd() const { return fd_.fd(); }
  void Ring() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd(), &one, sizeof(one));
  }
  void Silence() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd(), &count, sizeof(count));
  }

 private:
  Socket fd_;
};

}  // namespace

// The table, the listening socket and the thread that serves it. Is itself the hosting rank's
// Store, so that the thread hears of what that rank sets.
class TcpStoreServer::Impl final : public Store {
 public:
  Impl(Options options, Socket listener)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        table_(MakeMemoryStore()),
        port_(internal::LocalPort(listener_)) {
    thread_ = StartThread([this] { Serve(); });
  }

  ~Impl() override {
    const auto until = Clock::now() + absl::ToChronoNanoseconds(options_.linger);
    while (connected_ > 0 && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    stop_ = true;
    bell_.Ring();
    thread_.join();
  }

  int port() const { return port_; }
  std::string reached_address() const {
    std::lock_guard<std::mutex> lock(reached_mutex_);
    return reached_;
  }

  absl::Status Set(std::string_view key, std::string_view value) override {
    return Told(table_->Set(key, value));
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    return table_->Get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    return table_->TryGet(key);
  }
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    return Told(table_->Add(key, delta));
  }
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    return Told(table_->CompareSet(key, expected, desired));
  }
  absl::StatusOr<bool> Delete(std::string_view key) override { return table_->Delete(key); }

 private:
  template <typename T>
  T Told(T result) {
    bell_.Ring();
    return result;
  }

  void Serve() {
    while (!stop_) {
      std::vector<pollfd> polled = {{bell_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
      if (Clock::now() < accept_after_) polled[1].events = 0;
      for (const Connection& c : connections_) {
        const bool want_input = !c.waiting && !c.closing && c.output.size() < kMaxUnsentBytes;
        polled.push_back(
            {c.socket.fd(),
             static_cast<short>((want_input ? POLLIN : 0) | (c.output.empty() ? 0 : POLLOUT)), 0});
      }
      poll(polled.data(), polled.size(), 100);
      if (polled[0].revents != 0) bell_.Silence();
      size_t at = 2;
      for (auto it = connections_.begin(); it != connections_.end(); ++at) {
        it = Survives(*it, polled[at].revents) ? std::next(it) : connections_.erase(it);
      }
      if (polled[1].revents != 0) Accept();
      for (auto it = connections_.begin(); it != connections_.end();) {
        it = !it->waiting || AnswersInTime(*it) ? std::next(it) : connections_.erase(it);
      }
      connected_ = static_cast<int>(connections_.size());
    }
  }

  void Accept() {
    for (;;) {
      Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        // Out of descriptors, say: the listener stays readable, so leave it alone for a moment.
        if (errno != EAGAIN) accept_after_ = Clock::now() + std::chrono::milliseconds(50);
        return;
      }
      if (static_cast<int>(connections_.size()) >= options_.max_connections) continue;
      try {
        Connection& c = connections_.emplace_back();
        c.socket = std::move(socket);
        c.opened = Clock::now();
      } catch (const std::exception&) {
        // No memory: this one is closed.
      }
    }
  }

  // Reads, executes and writes what there is; false when the connection is to be closed.
  bool Survives(Connection& c, short events) {
    try {
      if ((events & (POLLERR | POLLNVAL)) != 0) return false;
      if ((events & POLLHUP) != 0 && (events & POLLIN) == 0) return false;
      if ((events & POLLIN) != 0 && !Read(c)) return false;
      if (!Process(c)) return false;
      if (!c.trusted &&
          Clock::now() - c.opened > absl::ToChronoNanoseconds(options_.secret_timeout)) {
        return false;
      }
      return Write(c);
    } catch (const std::exception&) {
      return false;  // no memory: this client is dropped, the others are served
    }
  }

  static bool Read(Connection& c) {
    char buffer[kReadBytes];
    const ssize_t got = recv(c.socket.fd(), buffer, sizeof(buffer), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    c.input.append(buffer, static_cast<size_t>(got));
    return got > 0;
  }

  static bool Write(Connection& c) {
    while (!c.output.empty()) {
      const ssize_t sent = send(c.socket.fd(), c.output.data(), c.output.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      c.output.erase(0, static_cast<size_t>(sent));
    }
    return !c.closing;
  }

  bool Process(Connection& c) {
    if (!c.trusted && !CheckSecret(c)) return false;
    size_t used = 0;
    while (c.trusted && !c.waiting && c.output.size() < kMaxUnsentBytes &&
           c.input.size() - used >= 4) {
      const std::string_view rest = std::string_view(c.input).substr(used);
      const uint32_t length = internal::ParseLength(rest);
      if (length > internal::kMaxMessageBytes) return false;
      if (rest.size() - 4 < length) break;
      std::optional<StoreRequest> request = internal::ParseRequest(rest.substr(4, length));
      if (!request.has_value()) return false;
      used += 4 + length;
      Answer(c, *request);
    }
    c.input.erase(0, used);
    return true;
  }

  // False when the connection cannot be a client. Waits for more when the greeting is incomplete.
  bool CheckSecret(Connection& c) {
    const std::string_view input = c.input;
    const size_t head = internal::kStoreMagic.size();
    // A wrong first byte is enough: nobody is to wait for the rest of a web request.
    if (input.substr(0, head) != internal::kStoreMagic.substr(0, input.size())) return false;
    if (input.size() < head + 4) return true;
    const uint32_t length = internal::ParseLength(input.substr(head));
    if (length > internal::kMaxSecretBytes) return false;
    if (input.size() < head + 4 + length) return true;
    c.trusted = EqualInConstantTime(input.substr(head + 4, length), options_.secret);
    c.closing = !c.trusted;
    c.output.push_back(c.trusted ? internal::kSecretAccepted : internal::kSecretRefused);
    c.input.erase(0, head + 4 + length);
    NoteReached(c.socket);
    return true;
  }

  void NoteReached(const Socket& socket) {
    const std::string address = internal::LocalAddress(socket);
    if (address.empty() || internal::IsLoopback(address)) return;
    std::lock_guard<std::mutex> lock(reached_mutex_);
    if (reached_.empty()) reached_ = address;
  }

  void Answer(Connection& c, const StoreRequest& request) {
    StoreResponse response = Execute(*table_, request);
    if (request.op == StoreOp::kGet && response.code == absl::StatusCode::kNotFound) {
      c.waiting = true;
      c.awaited = request.key;
      c.wait_until = Clock::now() + std::chrono::milliseconds(
                                        std::clamp<int64_t>(request.number, 0, kLongestWaitMs));
      return;
    }
    c.output += internal::Encode(response);
  }

  // Answers a waiting client if its key has come or its time is up, and what it sent after that.
  // False when the connection is to be closed.
  bool AnswersInTime(Connection& c) {
    try {
      absl::StatusOr<std::optional<std::string>> value = table_->TryGet(c.awaited);
      const bool found = value.ok() && value->has_value();
      if (!found && Clock::now() < c.wait_until) return true;
      c.waiting = false;
      StoreResponse response;
      if (found) {
        response.value = std::move(**value);
      } else {
        response = Failure(absl::DeadlineExceededError(
            absl::StrCat("store key '", c.awaited, "' was not set in time")));
      }
      c.output += internal::Encode(response);
      return Process(c) && Write(c);
    } catch (const std::exception&) {
      return false;
    }
  }

  const Options options_;
  const Socket listener_;
  const std::shared_ptr<Store> table_;
  const int port_;
  const Bell bell_;
  std::atomic<bool> stop_{false};
  std::atomic<int> connected_{0};
  mutable std::mutex reached_mutex_;
  std::string reached_;
  // Of the thread alone.
  std::list<Connection> connections_;
  Clock::time_point accept_after_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Listen(Options options) {
  if (static_cast<int64_t>(options.secret.size()) > internal::kMaxSecretBytes) {
    return absl::InvalidArgumentError("the store's secret is longer than 256 bytes");
  }
  absl::StatusOr<Socket> listener = internal::ListenOn(options.address, options.port);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<TcpStoreServer>(
      new TcpStoreServer(std::make_shared<Impl>(std::move(options), *std::move(listener))));
}

TcpStoreServer::TcpStoreServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return impl_->port(); }
std::shared_ptr<Store> TcpStoreServer::local() const { return impl_; }
std::string TcpStoreServer::reached_address() const { return impl_->reached_address(); }

}  // namespace sherd
