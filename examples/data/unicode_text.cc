#include "data/unicode_text.h"

#include <algorithm>

#include "data/unicode_tables.h"

namespace data {
namespace {

// Hangul syllables decompose by arithmetic: chapter 3.12 of the Unicode standard.
constexpr uint32_t kSyllable = 0xAC00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
constexpr uint32_t kSyllables = 11172, kVowels = 21, kTrailings = 28;

void AppendParts(uint32_t code, std::u32string& parts) {
  if (const uint32_t syllable = code - kSyllable; code >= kSyllable && syllable < kSyllables) {
    const uint32_t trailing = syllable % kTrailings, pair = syllable / kTrailings;
    parts.push_back(kLeading + pair / kVowels);
    parts.push_back(kVowel + pair % kVowels);
    if (trailing > 0) parts.push_back(kTrailing + trailing);
    return;
  }
  const DecompositionRange* const range =
      code < 0xC0 ? nullptr : FindRange(DecompositionRanges(), code);
  if (range == nullptr) {
    parts.push_back(code);
    return;
  }
  // At most four steps deep, each of at most two parts.
  const size_t at = range->at + size_t{range->size} * (code - range->first);
  for (const uint32_t part : DecompositionParts().subspan(at, range->size)) {
    AppendParts(part, parts);
  }
}

uint8_t CombiningClass(uint32_t code) {
  const CombiningRange* const range = code < 0x300 ? nullptr : FindRange(CombiningRanges(), code);
  return range != nullptr ? range->value : 0;
}

}  // namespace

bool IsNonspacingMark(uint32_t code) {
  return code >= 0x300 && FindRange(NonspacingMarkRanges(), code) != nullptr;
}

bool IsOther(uint32_t code) { return FindRange(OtherRanges(), code) != nullptr; }

bool IsPunctuation(uint32_t code) { return FindRange(PunctuationRanges(), code) != nullptr; }

std::u32string Decomposed(std::u32string_view codes) {
  std::u32string parts;
  parts.reserve(codes.size());
  for (const char32_t code : codes) AppendParts(code, parts);
  // Marks behind one another stand in the order of their classes; others stay where they are.
  const auto is_mark = [](char32_t code) { return CombiningClass(code) > 0; };
  const auto before = [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); };
  for (auto at = parts.begin(); at != parts.end();) {
    const auto begin = std::find_if(at, parts.end(), is_mark);
    at = std::find_if_not(begin, parts.end(), is_mark);
    std::stable_sort(begin, at, before);
  }
  return parts;
}

std::u32string Lowercased(std::u32string_view codes) {
  std::u32string lower;
  lower.reserve(codes.size());
  for (const char32_t code : codes) {
    const CaseRange* const range = FindRange(LowerRanges(), code);
    if (code == 0x130) {
      lower += U"i\u0307";  // the only letter with two
    } else if (range != nullptr && (code - range->first) % range->step == 0) {
      lower.push_back(code + static_cast<char32_t>(range->delta));
    } else {
      lower.push_back(code);
    }
  }
  return lower;
}

}  // namespace data
