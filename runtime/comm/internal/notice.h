#pragma once

#include <optional>
#include <string>

namespace sherd::internal {

// What a rank needs to know to find rank 0's store, as one line of text: host, port, secret.
struct Notice {
  std::string host;
  int port = 0;
  std::string secret;

  std::string ToString() const;
  // Nothing when the text is no notice: notices of earlier jobs and other things may lie where one
  // is looked for.
  static std::optional<Notice> Parse(const std::string& text);
};

}  // namespace sherd::internal
