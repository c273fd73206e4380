#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sherd/runtime/comm/internal/host_address.h"
#include "sherd/runtime/comm/internal/socket.h"
#include "sherd/runtime/comm/internal/store_wire.h"
#include "sherd/runtime/comm/tcp_store.h"

namespace sherd {
namespace {

using internal::Socket;
using internal::StoreOp;
using internal::StoreRequest;
using internal::StoreResponse;

// How long the server may take for anything but a wait.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);

absl::StatusOr<Socket> DialAndGreet(const std::string& host, int port, const std::string& secret,
                                    absl::Time deadline) {
  absl::StatusOr<Socket> socket = internal::Dial(host, port, deadline);
  if (!socket.ok()) return socket.status();
  const std::string greeting = std::string(internal::kStoreMagic) +
                               internal::EncodeLength(static_cast<uint32_t>(secret.size())) +
                               secret;
  absl::Status status = internal::SendAll(*socket, greeting, deadline);
  if (!status.ok()) return status;
  char answer = 0;
  status = internal::ReceiveAll(*socket, &answer, 1, deadline);
  if (!status.ok()) return status;
  if (answer == internal::kSecretAccepted) return socket;
  return absl::PermissionDeniedError(absl::StrCat("the store at ", internal::HostPort(host, port),
                                                  " belongs to another job: it knows another ",
                                                  "secret"));
}

class TcpStoreClient final : public Store {
 public:
  TcpStoreClient(const std::string& host, int port, const std::string& secret)
      : name_(internal::HostPort(host, port)),
        pool_([=] { return DialAndGreet(host, port, secret, absl::Now() + kAnswerTimeout); }) {}

  void Keep(Socket socket) { pool_.GiveBack(std::move(socket)); }

  absl::Status Set(std::string_view key, std::string_view value) override {
    return Ask({.op = StoreOp::kSet, .key = std::string(key), .value = std::string(value)})
        .status();
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    timeout = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
    absl::StatusOr<StoreResponse> response = Ask({.op = StoreOp::kGet,
                                                  .number = absl::ToInt64Milliseconds(timeout),
                                                  .key = std::string(key)},
                                                 timeout);
    if (!response.ok()) return response.status();
    return std::move(response->value);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    absl::StatusOr<StoreResponse> response = Ask({.op = StoreOp::kTryGet, .key = std::string(key)});
    if (absl::IsNotFound(response.status())) return std::optional<std::string>();
    if (!response.ok()) return response.status();
    return std::optional<std::string>(std::move(response->value));
  }
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    absl::StatusOr<StoreResponse> response =
        Ask({.op = StoreOp::kAdd, .number = delta, .key = std::string(key)});
    if (!response.ok()) return response.status();
    return response->number;
  }
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    absl::StatusOr<StoreResponse> response = Ask({.op = StoreOp::kCompareSet,
                                                  .key = std::string(key),
                                                  .value = std::string(desired),
                                                  .expected = std::string(expected)});
    if (!response.ok()) return response.status();
    return std::move(response->value);
  }
  absl::StatusOr<bool> Delete(std::string_view key) override {
    absl::StatusOr<StoreResponse> response = Ask({.op = StoreOp::kDelete, .key = std::string(key)});
    if (!response.ok()) return response.status();
    return response->number != 0;
  }

 private:
  // One request and its answer, which the server may hold back for `wait`.
  absl::StatusOr<StoreResponse> Ask(const StoreRequest& request,
                                    absl::Duration wait = absl::ZeroDuration()) {
    if (static_cast<int64_t>(request.key.size()) > kMaxKeyBytes ||
        static_cast<int64_t>(std::max(request.value.size(), request.expected.size())) >
            kMaxValueBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("store key or value too long: ", request.key.size(), " and ",
                       request.value.size(), " bytes"));
    }
    absl::StatusOr<StoreResponse> response = Exchange(request, absl::Now() + wait + kAnswerTimeout);
    if (!response.ok()) {
      // Whatever happened to the connection, the server is not answering.
      return absl::UnavailableError(absl::StrCat(
          "the store at ", name_, " is gone: ", std::string(response.status().message())));
    }
    if (response->code != absl::StatusCode::kOk) {
      return absl::Status(response->code, response->value);
    }
    return response;
  }

  absl::StatusOr<StoreResponse> Exchange(const StoreRequest& request, absl::Time deadline) {
    absl::StatusOr<Socket> socket = pool_.Take();
    if (!socket.ok()) return socket.status();
    absl::Status status = internal::SendAll(*socket, internal::Encode(request), deadline);
    char head[4];
    if (status.ok()) status = internal::ReceiveAll(*socket, head, 4, deadline);
    if (!status.ok()) return status;
    const uint32_t length = internal::ParseLength({head, 4});
    if (length > internal::kMaxMessageBytes) return absl::DataLossError("an answer is too long");
    std::string body(length, '\0');
    status = internal::ReceiveAll(*socket, body.data(), length, deadline);
    if (!status.ok()) return status;
    std::optional<StoreResponse> response = internal::ParseResponse(body);
    if (!response.has_value()) return absl::DataLossError("an answer makes no sense");
    pool_.GiveBack(*std::move(socket));
    return *std::move(response);
  }

  const std::string name_;
  internal::SocketPool pool_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> ConnectTcpStore(const std::string& host, int port,
                                                       const std::string& secret,
                                                       absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    absl::StatusOr<Socket> socket = DialAndGreet(host, port, secret, deadline);
    if (socket.ok()) {
      auto store = std::make_shared<TcpStoreClient>(host, port, secret);
      store->Keep(*std::move(socket));
      return std::shared_ptr<Store>(std::move(store));
    }
    if (absl::IsPermissionDenied(socket.status())) return socket.status();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no store answered at ", internal::HostPort(host, port), " within ",
                       absl::FormatDuration(absl::Trunc(timeout, absl::Milliseconds(1))), ": ",
                       std::string(socket.status().message())));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace sherd
