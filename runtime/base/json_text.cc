#include "sherd/runtime/base/json_text.h"

#include <algorithm>
#include <cstdio>

#include "sherd/runtime/base/utf8.h"

namespace sherd {
std::string JsonQuoted(std::string_view text) {
  std::string json = "\"";
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t length = Utf8SequenceBytes(text.substr(i));
    if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      json += escape;
    } else if (length == 0) {
      json += "\\ufffd";
    } else {
      json.append(text, i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return json + "\"";
}

}  // namespace sherd
