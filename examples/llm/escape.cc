#include "llm/escape.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "sherd/runtime/base/utf8.h"

namespace llm {
std::string JsonNumber(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "%.17g", value);
  return buffer;
}

std::string ValidUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = sherd::Utf8SequenceBytes(text);
    result += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

std::string HtmlText(std::string_view text) {
  std::string result;
  for (const char c : ValidUtf8(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '\0':
        result += "\xEF\xBF\xBD";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string JsonString(std::string_view text) {
  std::string result = "\"";
  for (const char c : ValidUtf8(text)) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<uint8_t>(c) < 0x20 || c == '<') {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", static_cast<uint8_t>(c));
      result += buffer;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace llm
