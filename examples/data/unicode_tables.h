#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

// Data of Unicode's files, for unicode_classes.h and unicode_text.h. All tables are in order.
namespace data {

struct CodeRange {
  uint32_t first, last;
};
// The lower case of first, first + step, and so on, is delta further.
struct CaseRange {
  uint32_t first, last;
  uint8_t step;
  int32_t delta;
};
struct CombiningRange {
  uint32_t first, last;
  uint8_t value;  // Canonical_Combining_Class
};
// Each becomes `size` parts, of which the first one's begin at `at`.
struct DecompositionRange {
  uint32_t first, last;
  uint8_t size;
  uint16_t at;
};

std::span<const CodeRange> NonspacingMarkRanges();
std::span<const CodeRange> OtherRanges();
std::span<const CodeRange> PunctuationRanges();
std::span<const CaseRange> LowerRanges();
std::span<const CombiningRange> CombiningRanges();
std::span<const DecompositionRange> DecompositionRanges();
std::span<const uint32_t> DecompositionParts();

// The range that a code point lies in; null if none.
template <typename Range>
const Range* FindRange(std::span<const Range> ranges, uint32_t code) {
  const auto next =
      std::upper_bound(ranges.begin(), ranges.end(), code,
                       [](uint32_t c, const Range& range) { return c < range.first; });
  if (next == ranges.begin() || code > std::prev(next)->last) return nullptr;
  return &*std::prev(next);
}

}  // namespace data
