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
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "sherd/runtime/base/thread.h"
#include "sherd/runtime/comm/internal/host_address.h"
#include "sherd/runtime/comm/internal/socket.h"
#include "sherd/runtime/comm/internal/store_session.h"
#include "sherd/runtime/comm/tcp_store.h"

namespace sherd {
namespace {

using internal::Socket;
using internal::StoreSession;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 64 * 1024;

// One client, as the server's thread sees it.
struct Connection {
  Connection(Socket from, std::string_view secret, Store& table)
      : socket(std::move(from)), session(secret, table) {}
  const Socket socket;
  StoreSession session;
  const Clock::time_point opened = Clock::now();
};

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
  Impl(Options options, std::vector<Socket> listeners)
      : options_(std::move(options)),
        listeners_(std::move(listeners)),
        table_(MakeMemoryStore()),
        port_(internal::LocalPort(listeners_.front())) {
    thread_ = StartThread([this] { Serve(); }, "sherd/store");
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
      std::vector<pollfd> polled = {{bell_.fd(), POLLIN, 0}};
      const bool accepting = Clock::now() >= accept_after_;
      for (const Socket& listener : listeners_) {
        polled.push_back({listener.fd(), static_cast<short>(accepting ? POLLIN : 0), 0});
      }
      for (const Connection& c : connections_) {
        const int wanted =
            (c.session.room() > 0 ? POLLIN : 0) | (c.session.output().empty() ? 0 : POLLOUT);
        polled.push_back({c.socket.fd(), static_cast<short>(wanted), 0});
      }
      poll(polled.data(), polled.size(), 100);
      if (polled[0].revents != 0) bell_.Silence();
      size_t at = 1 + listeners_.size();
      for (auto it = connections_.begin(); it != connections_.end(); ++at) {
        it = Survives(*it, polled[at].revents) ? std::next(it) : connections_.erase(it);
      }
      for (size_t i = 0; i < listeners_.size(); ++i) {
        if (polled[1 + i].revents != 0) Accept(listeners_[i]);
      }
      // After all requests of this round: one may have set what another waits for.
      for (auto it = connections_.begin(); it != connections_.end();) {
        it = !it->session.waiting() || Resumes(*it) ? std::next(it) : connections_.erase(it);
      }
      connected_ = static_cast<int>(connections_.size());
    }
  }

  void Accept(const Socket& listener) {
    for (;;) {
      Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        // Out of descriptors, say: the listener stays readable, so leave it alone for a moment.
        if (errno != EAGAIN) accept_after_ = Clock::now() + std::chrono::milliseconds(50);
        return;
      }
      if (!HasPlace()) continue;
      try {
        connections_.emplace_back(std::move(socket), options_.secret, *table_);
      } catch (const std::exception&) {
        // No memory: this one is closed.
      }
    }
  }

  // Makes place for one more at the cost of the oldest that has not shown the secret: strangers
  // that keep silent must not keep ranks out.
  bool HasPlace() {
    if (static_cast<int>(connections_.size()) < options_.max_connections) return true;
    auto oldest = std::find_if(connections_.begin(), connections_.end(),
                               [](const Connection& c) { return !c.session.trusted(); });
    if (oldest == connections_.end()) return false;
    connections_.erase(oldest);
    return true;
  }

  // Reads, executes and writes what there is; false when the connection is to be closed.
  bool Survives(Connection& c, short events) {
    try {
      if ((events & (POLLERR | POLLNVAL)) != 0) return false;
      if ((events & POLLHUP) != 0 && (events & POLLIN) == 0) return false;
      if ((events & POLLIN) != 0 && !Read(c)) return false;
      if (!c.session.waiting() && !c.session.Resume(Clock::now())) return false;
      if (!c.session.trusted() &&
          Clock::now() - c.opened > absl::ToChronoNanoseconds(options_.secret_timeout)) {
        return false;
      }
      return Write(c);
    } catch (const std::exception&) {
      return false;  // no memory: this client is dropped, the others are served
    }
  }

  bool Resumes(Connection& c) {
    try {
      return c.session.Resume(Clock::now()) && Write(c);
    } catch (const std::exception&) {
      return false;
    }
  }

  bool Read(Connection& c) {
    char buffer[kReadBytes];
    const size_t room = std::min(sizeof(buffer), c.session.room());
    if (room == 0) return true;
    const ssize_t got = recv(c.socket.fd(), buffer, room, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const bool stranger = !c.session.trusted();
    if (!c.session.Receive({buffer, static_cast<size_t>(got)}, Clock::now())) return false;
    if (stranger && c.session.trusted()) NoteReached(c.socket);
    return true;
  }

  static bool Write(Connection& c) {
    std::string& output = c.session.output();
    while (!output.empty()) {
      const ssize_t sent = send(c.socket.fd(), output.data(), output.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      output.erase(0, static_cast<size_t>(sent));
    }
    return !c.session.closing();
  }

  void NoteReached(const Socket& socket) {
    const std::string address = internal::LocalAddress(socket);
    if (address.empty() || internal::IsLoopback(address)) return;
    std::lock_guard<std::mutex> lock(reached_mutex_);
    if (reached_.empty()) reached_ = address;
  }

  const Options options_;
  const std::vector<Socket> listeners_;
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
  if (options.addresses.empty()) {
    return absl::InvalidArgumentError("the store has no address to listen on");
  }
  std::vector<Socket> listeners;
  int port = options.port;
  for (const std::string& address : options.addresses) {
    absl::StatusOr<Socket> listener = internal::ListenOn(address, port);
    if (!listener.ok()) return listener.status();
    port = internal::LocalPort(*listener);
    listeners.push_back(*std::move(listener));
  }
  return std::unique_ptr<TcpStoreServer>(
      new TcpStoreServer(std::make_shared<Impl>(std::move(options), std::move(listeners))));
}

TcpStoreServer::TcpStoreServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return impl_->port(); }
std::shared_ptr<Store> TcpStoreServer::local() const { return impl_; }
std::string TcpStoreServer::reached_address() const { return impl_->reached_address(); }

}  // namespace sherd
