#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace data {

// A character of UTF-8.
struct CodePoint {
  static constexpr uint32_t kReplacement = 0xFFFD;

  uint32_t code = kReplacement;
  size_t bytes = 1;
  bool valid = false;
};

// The first character of a text. A byte that begins no valid UTF-8 is one of its own, U+FFFD, and
// not valid. REQUIRES: text is not empty.
CodePoint FirstCodePoint(std::string_view text);

// Appends a code point as UTF-8. REQUIRES: it is one, below U+110000.
void AppendUtf8(uint32_t code, std::string& text);

}  // namespace data
