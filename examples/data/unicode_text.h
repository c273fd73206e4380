#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace data {

// Category Mn, marks that take no space of their own. Threads: safe, all here.
bool IsNonspacingMark(uint32_t code);
// Categories Cc, Cf and Co: control and format characters, and those for private use.
bool IsOther(uint32_t code);
// The categories that begin with P.
bool IsPunctuation(uint32_t code);

// The canonical decomposition, NFD: characters as far apart as they come, marks in their order.
std::u32string Decomposed(std::u32string_view codes);
// Each character's full lower case, whatever stands beside it: U+0130 becomes two.
std::u32string Lowercased(std::u32string_view codes);

}  // namespace data
