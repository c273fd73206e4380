#include "sherd/runtime/base/json_text.h"

#include <algorithm>
#include <cstdio>

namespace sherd {
namespace {

// Length of the UTF-8 sequence that begins here; 0 if none does.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(0) < 0x80 ? 1 : byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (length > text.size() || (byte(0) >= 0x80 && byte(0) < 0xc2) || byte(0) > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool surrogate = byte(0) == 0xed && byte(1) >= 0xa0;
  const bool too_large = byte(0) == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

std::string JsonQuoted(std::string_view text) {
  std::string json = "\"";
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t length = Utf8Length(text.substr(i));
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
