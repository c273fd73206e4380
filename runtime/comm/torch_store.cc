#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sherd/runtime/comm/internal/host_address.h"
#include "sherd/runtime/comm/internal/socket.h"
#include "sherd/runtime/comm/tcp_store.h"

namespace sherd {
namespace {

using internal::Socket;

constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);
constexpr uint32_t kValidateMagic = 0x3C85F7CE;
constexpr uint64_t kMaxAnswerBytes = uint64_t{8} << 20;

// Operation numbers of PyTorch's TCPStore: those up to 2.1 lack the first one.
enum class Op : uint8_t { kSet = 1, kCompareSet = 2, kGet = 3, kAdd = 4, kCheck = 5, kWait = 6 };
constexpr uint8_t kDeleteKey = 8;  // in both

// Builds one request. It is sent in one piece: PyTorch's older server reads it with blocking calls,
// so half a request would stop the store for the whole job.
class Request {
 public:
  Request(Op op, bool modern) { Byte(static_cast<uint8_t>(static_cast<int>(op) - !modern)); }
  explicit Request(uint8_t op) { Byte(op); }

  Request& Text(std::string_view text) {
    Number(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  Request& Number(uint64_t value) {
    char raw[8];
    std::memcpy(raw, &value, 8);
    bytes_.append(raw, 8);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  std::string bytes_;
};

std::string Greeting() {
  std::string bytes(1, '\0');
  char raw[4];
  std::memcpy(raw, &kValidateMagic, 4);
  return bytes.append(raw, 4);
}

absl::StatusOr<Socket> DialTorch(const std::string& host, int port, bool modern,
                                 absl::Time deadline) {
  absl::StatusOr<Socket> socket = internal::Dial(host, port, deadline);
  if (!socket.ok() || !modern) return socket;
  absl::Status status = internal::SendAll(*socket, Greeting(), deadline);
  if (!status.ok()) return status;
  return socket;
}

// Whether the server speaks the dialect of PyTorch >= 2.2: it answers four times to a greeting
// followed by four GETNUMKEYS. An older one reads the same nine bytes as a SET with an absurd key
// length and drops the connection, and only that.
absl::StatusOr<bool> ProbeModern(const std::string& host, int port, absl::Time deadline) {
  absl::StatusOr<Socket> socket = internal::Dial(host, port, deadline);
  if (!socket.ok()) return socket.status();
  const absl::Time soon = std::min(deadline, absl::Now() + absl::Seconds(5));
  absl::Status status = internal::SendAll(*socket, Greeting() + "\7\7\7\7", soon);
  char counts[32];
  if (status.ok()) status = internal::ReceiveAll(*socket, counts, sizeof(counts), soon);
  if (status.ok()) return true;
  if (absl::IsUnavailable(status)) return false;
  return status;
}

class TorchStore final : public Store {
 public:
  TorchStore(const std::string& host, int port, bool modern)
      : name_(internal::HostPort(host, port)),
        modern_(modern),
        pool_([=] { return DialTorch(host, port, modern, absl::Now() + kAnswerTimeout); }) {}

  absl::Status Set(std::string_view key, std::string_view value) override {
    // SET has no answer; a question after it on the same connection tells that it arrived.
    Request request(Op::kSet, modern_);
    request.Text(Full(key)).Text(value);
    return Run(key, value, [&](const Socket& socket) -> absl::Status {
      const absl::Time deadline = absl::Now() + kAnswerTimeout;
      absl::Status status = internal::SendAll(socket, request.bytes(), deadline);
      if (!status.ok()) return status;
      return Check(socket, key, deadline).status();
    });
  }

  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    std::string value;
    bool late = false;
    absl::Status status = Run(key, "", [&](const Socket& socket) -> absl::Status {
      const absl::Time deadline = absl::Now() + timeout;
      Request wait(Op::kWait, modern_);
      wait.Number(1).Text(Full(key));
      absl::Status sent = internal::SendAll(socket, wait.bytes(), absl::Now() + kAnswerTimeout);
      if (!sent.ok()) return sent;
      char ready = 0;
      absl::Status answered = internal::ReceiveAll(socket, &ready, 1, deadline);
      late = absl::IsDeadlineExceeded(answered);
      if (!answered.ok()) return answered;
      return Fetch(socket, key, value);
    });
    if (late) {
      return absl::DeadlineExceededError(absl::StrCat(
          "store key '", std::string(key), "' was not set within ", absl::FormatDuration(timeout)));
    }
    if (!status.ok()) return status;
    return value;
  }

  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    std::optional<std::string> value;
    absl::Status status = Run(key, "", [&](const Socket& socket) -> absl::Status {
      absl::StatusOr<bool> exists = Check(socket, key, absl::Now() + kAnswerTimeout);
      if (!exists.ok()) return exists.status();
      if (!*exists) return absl::OkStatus();
      return Fetch(socket, key, value.emplace());
    });
    if (!status.ok()) return status;
    return value;
  }

  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    Request request(Op::kAdd, modern_);
    request.Text(Full(key)).Number(static_cast<uint64_t>(delta));
    return AskNumber(key, request);
  }

  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    Request request(Op::kCompareSet, modern_);
    request.Text(Full(key)).Text(expected).Text(desired);
    std::string value;
    absl::Status status = Run(key, desired, [&](const Socket& socket) -> absl::Status {
      const absl::Time deadline = absl::Now() + kAnswerTimeout;
      absl::Status sent = internal::SendAll(socket, request.bytes(), deadline);
      return sent.ok() ? ReadText(socket, value, deadline) : sent;
    });
    if (!status.ok()) return status;
    return value;
  }

  absl::StatusOr<bool> Delete(std::string_view key) override {
    absl::StatusOr<int64_t> deleted = AskNumber(key, Request(kDeleteKey).Text(Full(key)));
    if (!deleted.ok()) return deleted.status();
    return *deleted != 0;
  }

 private:
  static std::string Full(std::string_view key) { return absl::StrCat("/", std::string(key)); }

  // Runs `body` on a connection, which is kept for the next one if all went well.
  template <typename Body>
  absl::Status Run(std::string_view key, std::string_view value, const Body& body) {
    if (key.empty() || static_cast<int64_t>(key.size()) > kMaxKeyBytes ||
        static_cast<int64_t>(value.size()) > kMaxValueBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "store key or value out of limits: ", key.size(), " and ", value.size(), " bytes"));
    }
    absl::StatusOr<Socket> socket = pool_.Take();
    absl::Status status = socket.ok() ? body(*socket) : socket.status();
    if (status.ok()) {
      pool_.GiveBack(*std::move(socket));
      return status;
    }
    return absl::UnavailableError(
        absl::StrCat("torchrun's store at ", name_, " is gone: ", std::string(status.message())));
  }

  absl::StatusOr<int64_t> AskNumber(std::string_view key, const Request& request) {
    int64_t number = 0;
    absl::Status status = Run(key, "", [&](const Socket& socket) -> absl::Status {
      const absl::Time deadline = absl::Now() + kAnswerTimeout;
      absl::Status sent = internal::SendAll(socket, request.bytes(), deadline);
      return sent.ok() ? internal::ReceiveAll(socket, &number, 8, deadline) : sent;
    });
    if (!status.ok()) return status;
    return number;
  }

  absl::StatusOr<bool> Check(const Socket& socket, std::string_view key, absl::Time deadline) {
    Request request(Op::kCheck, modern_);
    request.Number(1).Text(Full(key));
    absl::Status status = internal::SendAll(socket, request.bytes(), deadline);
    char absent = 1;
    if (status.ok()) status = internal::ReceiveAll(socket, &absent, 1, deadline);
    if (!status.ok()) return status;
    return absent == 0;
  }

  absl::Status Fetch(const Socket& socket, std::string_view key, std::string& value) {
    const absl::Time deadline = absl::Now() + kAnswerTimeout;
    Request request(Op::kGet, modern_);
    request.Text(Full(key));
    absl::Status status = internal::SendAll(socket, request.bytes(), deadline);
    return status.ok() ? ReadText(socket, value, deadline) : status;
  }

  static absl::Status ReadText(const Socket& socket, std::string& text, absl::Time deadline) {
    uint64_t length = 0;
    absl::Status status = internal::ReceiveAll(socket, &length, 8, deadline);
    if (!status.ok()) return status;
    if (length > kMaxAnswerBytes) return absl::DataLossError("an answer is too long");
    text.resize(length);
    return internal::ReceiveAll(socket, text.data(), static_cast<int64_t>(length), deadline);
  }

  const std::string name_;
  const bool modern_;
  internal::SocketPool pool_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> ConnectTorchStore(const std::string& host, int port,
                                                         absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    absl::StatusOr<bool> modern = ProbeModern(host, port, deadline);
    if (modern.ok())
      return std::shared_ptr<Store>(std::make_shared<TorchStore>(host, port, *modern));
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "torchrun's store did not answer at ", internal::HostPort(host, port), " within ",
          absl::FormatDuration(timeout), ": ", std::string(modern.status().message())));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace sherd
