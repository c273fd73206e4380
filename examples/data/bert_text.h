#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace data {

// What BERT's tokenizers do to a text before they cut it; the names are those of tokenizer.json.
// The defaults are those of an uncased model; a cased one leaves accents and case alone.
struct BertRules {
  bool clean_text = true;            // no control characters, and all white space is ' '
  bool handle_chinese_chars = true;  // each ideograph is a word of its own
  bool strip_accents = true;         // decomposed (NFD), without nonspacing marks
  bool lowercase = true;             // after that

  bool operator==(const BertRules&) const = default;
};

// Returns the text in the form in which its words are looked up. The rules apply in their order:
// - Control characters are U+0000, U+FFFD and the categories Cc, Cf and Co but tab, line feed and
//   carriage return.
// - Ideographs are those of the CJK blocks, which get a space on either side; kana, Hangul and the
//   like are not.
// - A letter's lower case is of the letter alone: capital sigma becomes the same everywhere.
// A byte that is no UTF-8 counts as U+FFFD: where the text is cleaned, it is gone.
//
// The characters are those of the Unicode versions that the package `tokenizers` has; see
// unicode_text.h. Threads: safe.
// Source: Devlin et al. 2018, tokenization.py of github.com/google-research/bert.
std::string NormalizeBert(std::string_view text, const BertRules& rules);

// Appends the words of a text: what white space separates, and of it each punctuation character by
// itself. Punctuation is what ASCII has that is no letter, digit or space, and all of category P.
// Ownership: views of `text`. REQUIRES: it is UTF-8, as NormalizeBert returns it.
void SplitBert(std::string_view text, std::vector<std::string_view>& words);

}  // namespace data
