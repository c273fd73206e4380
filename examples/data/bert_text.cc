#include "data/bert_text.h"

#include <array>
#include <cstdint>

#include "data/code_points.h"
#include "data/unicode_classes.h"
#include "data/unicode_text.h"

namespace data {
namespace {

// Tab, line feed and carriage return are control characters that count as white space.
bool IsDropped(uint32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  return code == 0 || code == CodePoint::kReplacement || IsOther(code);
}

bool IsIdeograph(uint32_t code) {
  struct Block {
    uint32_t first, last;
  };
  // The unified ideographs with their extensions A to E, and those for compatibility. Extension E
  // begins at U+2B820; that the package begins later is kept.
  constexpr std::array<Block, 8> kBlocks = {{{0x3400, 0x4DBF},
                                             {0x4E00, 0x9FFF},
                                             {0xF900, 0xFAFF},
                                             {0x20000, 0x2A6DF},
                                             {0x2A700, 0x2B73F},
                                             {0x2B740, 0x2B81F},
                                             {0x2B920, 0x2CEAF},
                                             {0x2F800, 0x2FA1F}}};
  for (const auto& [first, last] : kBlocks) {
    if (code >= first && code <= last) return true;
  }
  return false;
}

bool IsBertPunctuation(uint32_t code) {
  if (code >= 0x80) return IsPunctuation(code);
  return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
         (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
}

}  // namespace

std::string NormalizeBert(std::string_view text, const BertRules& rules) {
  std::u32string codes;
  codes.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = FirstCodePoint(text);
    text.remove_prefix(next.bytes);
    uint32_t code = next.code;
    if (rules.clean_text) {
      if (IsDropped(code)) continue;
      if (IsSpace(code)) code = ' ';
    }
    const bool alone = rules.handle_chinese_chars && IsIdeograph(code);
    if (alone) codes.push_back(U' ');
    codes.push_back(code);
    if (alone) codes.push_back(U' ');
  }
  if (rules.strip_accents) {
    codes = Decomposed(codes);
    std::erase_if(codes, [](char32_t code) { return IsNonspacingMark(code); });
  }
  if (rules.lowercase) codes = Lowercased(codes);
  std::string normalized;
  normalized.reserve(codes.size());
  for (const char32_t code : codes) AppendUtf8(code, normalized);
  return normalized;
}

void SplitBert(std::string_view text, std::vector<std::string_view>& words) {
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = FirstCodePoint(text.substr(at));
    const size_t end = at + next.bytes;
    const bool punctuation = IsBertPunctuation(next.code);
    if (punctuation || IsSpace(next.code)) {
      end_word(at);
      if (punctuation) words.push_back(text.substr(at, next.bytes));
      begin = end;
    }
    at = end;
  }
  end_word(text.size());
}

}  // namespace data
