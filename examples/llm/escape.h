#pragma once

#include <string>
#include <string_view>

namespace llm {

// `value` with all its digits, so that reading it gives the same bits; "null" for NaN and
// infinities, which JSON does not know.
std::string JsonNumber(double value);

// `text` in quotes. Bytes that are no UTF-8 become U+FFFD; "</" cannot occur, so the result may
// stand inside an HTML script element.
std::string JsonString(std::string_view text);

// `text` for the inside of an HTML element or a quoted attribute.
std::string HtmlText(std::string_view text);

// `text` as valid UTF-8: every byte that belongs to no code point becomes U+FFFD.
std::string ValidUtf8(std::string_view text);

}  // namespace llm
