#include "data/code_points.h"

#include "sherd/runtime/base/utf8.h"

namespace data {

CodePoint FirstCodePoint(std::string_view text) {
  const size_t bytes = sherd::Utf8SequenceBytes(text);
  if (bytes == 0) return {};
  uint32_t code = static_cast<uint8_t>(text[0]);
  if (bytes > 1) code &= 0xFFu >> (bytes + 1);
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3F);
  return {code, bytes, true};
}

void AppendUtf8(uint32_t code, std::string& text) {
  if (code < 0x80) return text.push_back(static_cast<char>(code));
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  // The first begins with as many ones as there are bytes.
  text.push_back(static_cast<char>(0xFF00u >> (more + 1) | code >> (6 * more)));
  for (int shift = 6 * (more - 1); shift >= 0; shift -= 6) {
    text.push_back(static_cast<char>(0x80 | (code >> shift & 0x3F)));
  }
}

}  // namespace data
