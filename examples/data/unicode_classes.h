#pragma once

#include <cstdint>

namespace data {

// Whether a code point has a general category that begins with L (\p{L} of regular expressions).
// Code points that Unicode has given to nobody are neither letters nor numbers. Threads: safe, all
// three.
bool IsLetter(uint32_t code);
// Category N, \p{N}: digits, numerals that are letters in form, fractions and the like.
bool IsNumber(uint32_t code);
// The property White_Space, \s.
bool IsSpace(uint32_t code);

}  // namespace data
