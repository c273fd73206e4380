#include "sherd/runtime/comm/internal/notice.h"

#include <sstream>

#include "absl/strings/str_cat.h"

namespace sherd::internal {

std::string Notice::ToString() const { return absl::StrCat(host, " ", port, " ", secret, "\n"); }

std::optional<Notice> Notice::Parse(const std::string& text) {
  Notice notice;
  std::istringstream in(text);
  if (!(in >> notice.host >> notice.port >> notice.secret)) return std::nullopt;
  if (notice.port < 1 || notice.port > 65535) return std::nullopt;
  return notice;
}

}  // namespace sherd::internal
