#include "data/text_split.h"

#include <algorithm>
#include <cstdint>

#include "data/code_points.h"
#include "data/unicode_classes.h"
#include "sherd/runtime/base/utf8.h"

namespace data {
namespace {

enum class Kind { kLetter, kNumber, kSpace, kOther };

struct Character {
  size_t bytes = 1;
  Kind kind = Kind::kOther;
};

// REQUIRES: text is not empty.
Character FirstOf(std::string_view text) {
  const auto [code, bytes, valid] = FirstCodePoint(text);
  if (!valid) return {};
  const Kind kind = IsLetter(code)   ? Kind::kLetter
                    : IsNumber(code) ? Kind::kNumber
                    : IsSpace(code)  ? Kind::kSpace
                                     : Kind::kOther;
  return {bytes, kind};
}

// The bytes of all characters of that kind at the beginning.
size_t RunOf(std::string_view text, Kind kind) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Character next = FirstOf(text.substr(bytes));
    if (next.kind != kind) break;
    bytes += next.bytes;
  }
  return bytes;
}

size_t ContractionOf(std::string_view text) {
  for (const std::string_view end : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(end)) return end.size();
  }
  return 0;
}

// The bytes of the first word. REQUIRES: text is not empty.
size_t WordOf(std::string_view text) {
  if (const size_t bytes = ContractionOf(text); bytes > 0) return bytes;
  const Character first = FirstOf(text);
  if (first.kind != Kind::kSpace) return RunOf(text, first.kind);
  const size_t spaces = RunOf(text, Kind::kSpace);
  if (spaces == first.bytes && text[0] == ' ' && spaces < text.size()) {
    return spaces + RunOf(text.substr(spaces), FirstOf(text.substr(spaces)).kind);
  }
  if (spaces == first.bytes || spaces == text.size()) return spaces;
  // All but the last character of the white space, which what follows may take.
  size_t last = spaces - 1;
  while (sherd::Utf8SequenceBytes(text.substr(last)) == 0) --last;
  return last;
}

}  // namespace

void SplitWords(std::string_view text, std::vector<std::string_view>& pieces) {
  while (!text.empty()) {
    const size_t bytes = WordOf(text);
    pieces.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
}

void SplitNumbers(std::string_view text, std::vector<std::string_view>& pieces) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character next = FirstOf(text.substr(at));
    if (next.kind == Kind::kNumber) {
      if (at > begin) pieces.push_back(text.substr(begin, at - begin));
      pieces.push_back(text.substr(at, next.bytes));
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  if (begin < text.size()) pieces.push_back(text.substr(begin));
}

size_t LeadingSpace(std::string_view text) { return RunOf(text, Kind::kSpace); }

size_t TrailingSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
      --begin;
    }
    const Character last = FirstOf(text.substr(begin));
    if (last.kind != Kind::kSpace || last.bytes != end - begin) break;
    end = begin;
  }
  return text.size() - end;
}

}  // namespace data
