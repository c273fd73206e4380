#include "sherd/runtime/comm/internal/store_wire.h"

#include <utility>

namespace sherd::internal {
namespace {

template <typename T>
void Append(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF));
  }
}

void AppendString(std::string& out, std::string_view text) {
  Append<uint32_t>(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

// Takes fields from the front of a body; `ok` turns false when it is too short.
class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}

  template <typename T>
  T Number() {
    uint64_t value = 0;
    if (!Has(sizeof(T))) return T{};
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }

  std::string String() {
    const uint32_t length = Number<uint32_t>();
    if (!Has(length)) return "";
    std::string text(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return text;
  }

  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  bool Has(size_t bytes) {
    ok_ = ok_ && rest_.size() >= bytes;
    return ok_;
  }

  std::string_view rest_;
  bool ok_ = true;
};

std::string Framed(const std::string& body) {
  return EncodeLength(static_cast<uint32_t>(body.size())) + body;
}

}  // namespace

std::string EncodeLength(uint32_t length) {
  std::string out;
  Append(out, length);
  return out;
}

uint32_t ParseLength(std::string_view bytes) { return Reader(bytes).Number<uint32_t>(); }

std::string Encode(const StoreRequest& request) {
  std::string body;
  Append(body, static_cast<uint8_t>(request.op));
  Append(body, request.number);
  AppendString(body, request.key);
  AppendString(body, request.value);
  AppendString(body, request.expected);
  return Framed(body);
}

std::string Encode(const StoreResponse& response) {
  std::string body;
  Append(body, static_cast<uint8_t>(response.code));
  Append(body, response.number);
  AppendString(body, response.value);
  return Framed(body);
}

std::optional<StoreRequest> ParseRequest(std::string_view body) {
  Reader reader(body);
  StoreRequest request;
  const auto op = reader.Number<uint8_t>();
  request.op = static_cast<StoreOp>(op);
  request.number = reader.Number<int64_t>();
  request.key = reader.String();
  request.value = reader.String();
  request.expected = reader.String();
  const bool known =
      op >= static_cast<uint8_t>(StoreOp::kSet) && op <= static_cast<uint8_t>(StoreOp::kDelete);
  if (!known || !reader.AtEnd()) return std::nullopt;
  return request;
}

std::optional<StoreResponse> ParseResponse(std::string_view body) {
  Reader reader(body);
  StoreResponse response;
  response.code = static_cast<absl::StatusCode>(reader.Number<uint8_t>());
  response.number = reader.Number<int64_t>();
  response.value = reader.String();
  if (!reader.AtEnd()) return std::nullopt;
  return response;
}

}  // namespace sherd::internal
