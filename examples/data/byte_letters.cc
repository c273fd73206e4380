#include "data/byte_letters.h"

namespace data {
namespace {

bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The code point of a byte's letter. All are below U+0144.
uint32_t CodeOf(uint32_t byte) {
  if (StandsForItself(byte)) return byte;
  // Those before it that are not printable: 33 up to the space, 34 from 0x7F on, and 0xAD.
  if (byte <= 0x20) return 0x100 + byte;
  return byte == 0xAD ? 0x143 : 0x100 + 0x21 + (byte - 0x7F);
}

}  // namespace

std::string LetterOfByte(uint8_t byte) {
  const uint32_t code = CodeOf(byte);
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string LettersOfBytes(std::string_view bytes) {
  std::string letters;
  for (const char c : bytes) letters += LetterOfByte(static_cast<uint8_t>(c));
  return letters;
}

std::string BytesOfLetters(std::string_view letters) {
  std::string bytes;
  for (size_t i = 0; i < letters.size();) {
    const auto lead = static_cast<uint8_t>(letters[i]);
    const size_t size = lead < 0x80 ? 1 : 2;
    uint32_t code = lead;
    if (size == 2) {
      if (lead < 0xC2 || lead > 0xC5 || i + 1 == letters.size()) return std::string(letters);
      code = (lead & 0x1Fu) << 6 | (static_cast<uint8_t>(letters[i + 1]) & 0x3F);
    }
    if (code >= 0x144 || (code < 0x100 && !StandsForItself(code))) return std::string(letters);
    const uint32_t other = code - 0x100;  // the how manieth byte that is not printable
    bytes.push_back(static_cast<char>(code < 0x100    ? code
                                      : other <= 0x20 ? other
                                      : other == 0x43 ? 0xAD
                                                      : other - 0x21 + 0x7F));
    i += size;
  }
  return bytes;
}

}  // namespace data
