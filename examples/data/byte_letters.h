#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace data {

// The letter that files of byte-level tokenizers write for a byte, in UTF-8: the printable ones of
// Latin-1 stand for themselves, the others, in order, for those from U+0100 on. So a token is text
// without white space. Source: Radford et al. 2019, gpt-2/src/encoder.py.
std::string LetterOfByte(uint8_t byte);
std::string LettersOfBytes(std::string_view bytes);
// The bytes that letters stand for. Text with a letter that stands for none is returned as it is.
std::string BytesOfLetters(std::string_view letters);

}  // namespace data
