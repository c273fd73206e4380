#include "tests/process/store_fuzz.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "sherd/runtime/comm/internal/notice.h"
#include "sherd/runtime/comm/internal/store_session.h"
#include "sherd/runtime/comm/internal/store_wire.h"
#include "sherd/runtime/comm/store.h"

namespace {

using sherd::Store;
using sherd::internal::StoreSession;

constexpr std::string_view kSecret = "a secret";
constexpr auto kLongAfterAnyWait = std::chrono::hours(24 * 366);

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "store_fuzz: %s\n", what);
  std::abort();
}

// A table that counts how often it is touched.
class CountingStore final : public Store {
 public:
  absl::Status Set(std::string_view key, std::string_view value) override {
    return Touched().Set(key, value);
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    return Touched().Get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    return Touched().TryGet(key);
  }
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    return Touched().Add(key, delta);
  }
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    return Touched().CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> Delete(std::string_view key) override { return Touched().Delete(key); }

  int touches() const { return touches_; }

 private:
  Store& Touched() {
    ++touches_;
    return *table_;
  }
  std::shared_ptr<Store> table_ = sherd::MakeMemoryStore();
  int touches_ = 0;
};

// What a client sees of a conversation.
struct Seen {
  std::string output;
  bool cut_off = false;
  bool trusted = false;
  friend bool operator==(const Seen&, const Seen&) = default;
};

// Sends `bytes` in pieces of at most `piece` bytes; waits end when nothing else can happen.
Seen Converse(std::string_view bytes, size_t piece) {
  CountingStore table;
  StoreSession session(kSecret, table);
  Seen seen;
  StoreSession::Clock::time_point now{};
  bool alive = true;
  while (alive) {
    seen.output += session.output();
    session.output().clear();
    if (!session.trusted()) Require(table.touches() == 0, "a stranger touched the table");
    if (session.closing()) break;
    if (session.waiting()) {
      now += kLongAfterAnyWait;
      alive = session.Resume(now);
      continue;
    }
    const size_t size = std::min({piece, bytes.size(), session.room()});
    Require(session.room() > 0, "a conversation that can only wait for the client has no room");
    if (size == 0) break;
    alive = session.Receive(bytes.substr(0, size), now);
    bytes.remove_prefix(size);
  }
  seen.output += session.output();
  seen.cut_off = !alive;
  seen.trusted = session.trusted();
  return seen;
}

// A stranger sees at most one byte, a client an acceptance and whole responses.
void CheckOutput(const Seen& seen) {
  if (!seen.trusted) {
    Require(seen.output.empty() || seen.output == std::string(1, sherd::internal::kSecretRefused),
            "a stranger sees more than a refusal");
    return;
  }
  Require(!seen.output.empty() && seen.output[0] == sherd::internal::kSecretAccepted,
          "a client is not told that it is accepted");
  std::string_view rest = std::string_view(seen.output).substr(1);
  while (!rest.empty()) {
    Require(rest.size() >= 4, "half a length was sent");
    const size_t length = sherd::internal::ParseLength(rest);
    Require(length <= sherd::internal::kMaxMessageBytes, "a response is too long for a client");
    Require(rest.size() - 4 >= length, "half a response was sent");
    Require(sherd::internal::ParseResponse(rest.substr(4, length)).has_value(),
            "a response makes no sense");
    rest.remove_prefix(4 + length);
  }
}

// What parses is written the same way again.
void CheckParsers(const std::string& bytes) {
  if (const auto request = sherd::internal::ParseRequest(bytes)) {
    Require(Encode(*request).substr(4) == bytes, "a request changes when it is written again");
  }
  if (const auto response = sherd::internal::ParseResponse(bytes)) {
    Require(Encode(*response).substr(4) == bytes, "a response changes when it is written again");
  }
  if (const auto notice = sherd::internal::Notice::Parse(bytes)) {
    const auto again = sherd::internal::Notice::Parse(notice->ToString());
    Require(again.has_value() && again->host == notice->host && again->port == notice->port &&
                again->secret == notice->secret,
            "a notice changes when it is written again");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  CheckParsers(bytes);
  // The first byte: whether the client begins as it should, and how it cuts what it sends.
  if ((data[0] & 1) != 0) {
    bytes = std::string(sherd::internal::kStoreMagic) +
            sherd::internal::EncodeLength(static_cast<uint32_t>(kSecret.size())) +
            std::string(kSecret) + bytes;
  }
  const size_t piece = 1 + size_t{data[0]} / 2;
  const Seen in_pieces = Converse(bytes, piece);
  CheckOutput(in_pieces);
  Require(in_pieces == Converse(bytes, bytes.size() + 1),
          "pieces of another size mean another thing");
  return 0;
}
