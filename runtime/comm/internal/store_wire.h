#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sherd::internal {

// The messages between TcpStoreServer and its clients; see runtime/comm/README.md.
//
// A connection begins with kStoreMagic, u32 length and the secret; the server answers one byte,
// kSecretAccepted or kSecretRefused. Then requests and responses alternate. Integers are
// little-endian; a string is u32 length + bytes; a message is u32 length + body.
inline constexpr std::string_view kStoreMagic{"SHERD\0\0\1", 8};
inline constexpr char kSecretAccepted = 'Y';
inline constexpr char kSecretRefused = 'N';
inline constexpr int64_t kMaxSecretBytes = 256;
// Of a body: two values, a key and room for the rest.
inline constexpr int64_t kMaxMessageBytes = (int64_t{2} << 20) + 8192;

enum class StoreOp : uint8_t { kSet = 1, kGet, kTryGet, kAdd, kCompareSet, kDelete };

struct StoreRequest {
  StoreOp op = StoreOp::kSet;
  int64_t number = 0;  // kGet: milliseconds to wait; kAdd: what to add
  std::string key;
  std::string value;  // kSet, and what kCompareSet sets
  std::string expected;
};

struct StoreResponse {
  absl::StatusCode code = absl::StatusCode::kOk;  // kNotFound from kTryGet: no such key
  int64_t number = 0;                             // kAdd: the sum; kDelete: 1 if it existed
  std::string value;                              // or the message of an error
};

// A whole message, its length included.
std::string Encode(const StoreRequest& request);
std::string Encode(const StoreResponse& response);
// Parse a body. Nothing when it is not exactly one message.
std::optional<StoreRequest> ParseRequest(std::string_view body);
std::optional<StoreResponse> ParseResponse(std::string_view body);

std::string EncodeLength(uint32_t length);
// REQUIRES: at least 4 bytes.
uint32_t ParseLength(std::string_view bytes);

}  // namespace sherd::internal
