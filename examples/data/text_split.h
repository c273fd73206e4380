#pragma once

#include <string_view>
#include <vector>

namespace data {

// Appends the pieces that byte-level tokenizers merge within, side by side, as the pattern of GPT-2
// cuts them: contractions ('s, 't, 're, 've, 'm, 'll, 'd), runs of letters, of numbers or of
// anything else with the one space before, and white space, whose last character goes with what
// follows. A byte that is no UTF-8 is a character that is none of these.
//
// Source: Radford et al. 2019, the pattern in gpt-2/src/encoder.py. Ownership: views of `text`.
void SplitWords(std::string_view text, std::vector<std::string_view>& pieces);

// Appends the pieces of a text in which every number (IsNumber) is one of its own.
// Ownership: as SplitWords.
void SplitNumbers(std::string_view text, std::vector<std::string_view>& pieces);

// The bytes of white space at the beginning and at the end of a text.
size_t LeadingSpace(std::string_view text);
size_t TrailingSpace(std::string_view text);

}  // namespace data
