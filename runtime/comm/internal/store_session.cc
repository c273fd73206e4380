#include "sherd/runtime/comm/internal/store_session.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sherd::internal {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMaxUnsentBytes = size_t{8} << 20;
constexpr int64_t kLongestWaitMs = int64_t{365} * 24 * 3600 * 1000;
constexpr size_t kGreetingHead = kStoreMagic.size() + 4;

// Takes as long for a wrong secret as for the right one of its length.
bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

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

}  // namespace

size_t StoreSession::room() const {
  if (waiting_ || closing_ || output_.size() >= kMaxUnsentBytes) return 0;
  if (trusted_) return kReadBytes;
  constexpr size_t kLongest = kGreetingHead + static_cast<size_t>(kMaxSecretBytes);
  return kLongest - std::min(input_.size(), kLongest);
}

bool StoreSession::Receive(std::string_view bytes, Clock::time_point now) {
  input_.append(bytes);
  if (!trusted_ && !closing_ && !CheckSecret()) return false;
  return Process(now);
}

// False when this cannot be a client. Waits for more when the greeting is incomplete.
bool StoreSession::CheckSecret() {
  const std::string_view input = input_;
  // A wrong first byte is enough: nobody is to wait for the rest of a web request.
  if (input.substr(0, kStoreMagic.size()) != kStoreMagic.substr(0, input.size())) return false;
  if (input.size() < kGreetingHead) return true;
  const uint32_t length = ParseLength(input.substr(kStoreMagic.size()));
  if (length > kMaxSecretBytes) return false;
  if (input.size() < kGreetingHead + length) return true;
  trusted_ = EqualInConstantTime(input.substr(kGreetingHead, length), secret_);
  closing_ = !trusted_;
  output_.push_back(trusted_ ? kSecretAccepted : kSecretRefused);
  input_.erase(0, kGreetingHead + length);
  return true;
}

bool StoreSession::Process(Clock::time_point now) {
  size_t used = 0;
  while (trusted_ && !waiting_ && output_.size() < kMaxUnsentBytes && input_.size() - used >= 4) {
    const std::string_view rest = std::string_view(input_).substr(used);
    const uint32_t length = ParseLength(rest);
    if (length > kMaxMessageBytes) return false;
    if (rest.size() - 4 < length) break;
    std::optional<StoreRequest> request = ParseRequest(rest.substr(4, length));
    if (!request.has_value()) return false;
    used += 4 + length;
    Answer(*request, now);
  }
  input_.erase(0, used);
  return true;
}

void StoreSession::Answer(const StoreRequest& request, Clock::time_point now) {
  StoreResponse response = Execute(table_, request);
  if (request.op == StoreOp::kGet && response.code == absl::StatusCode::kNotFound) {
    waiting_ = true;
    awaited_ = request.key;
    const int64_t limit = std::clamp<int64_t>(request.number, 0, kLongestWaitMs);
    wait_until_ = now + std::chrono::milliseconds(limit);
    return;
  }
  output_ += Encode(response);
}

bool StoreSession::Resume(Clock::time_point now) {
  if (waiting_) {
    absl::StatusOr<std::optional<std::string>> value = table_.TryGet(awaited_);
    const bool found = value.ok() && value->has_value();
    if (!found && now < wait_until_) return true;
    waiting_ = false;
    StoreResponse response;
    if (found) {
      response.value = std::move(**value);
    } else {
      response = Failure(absl::DeadlineExceededError(
          absl::StrCat("store key '", awaited_, "' was not set in time")));
    }
    output_ += Encode(response);
  }
  return Process(now);
}

}  // namespace sherd::internal
