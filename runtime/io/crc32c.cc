#include "sherd/runtime/io/crc32c.h"

#include <array>

namespace sherd {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82F63B78U;
constexpr size_t kAtOnce = 8;

// tables[k][b]: what byte b does to the remainder when k bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, kAtOnce>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < kAtOnce; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t crc) {
  crc = ~crc;
  for (; bytes.size() >= kAtOnce; bytes = bytes.subspan(kAtOnce)) {
    uint64_t word = 0;
    for (size_t i = 0; i < kAtOnce; ++i) word |= uint64_t{bytes[i]} << (8 * i);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < kAtOnce; ++i) {
      crc ^= kTables[kAtOnce - 1 - i][word >> (8 * i) & 0xFF];
    }
  }
  for (const uint8_t byte : bytes) crc = crc >> 8 ^ kTables[0][(crc ^ byte) & 0xFF];
  return ~crc;
}

}  // namespace sherd
