#pragma once

#include <cstdint>
#include <span>

namespace sherd {

// The CRC-32C of `bytes`, or of everything so far if `crc` is that of what came before.
//
// The Castagnoli polynomial, as iSCSI, ext4 and TFRecord have it: of "123456789" it is 0xE3069283.
// Cost: about a byte a cycle; 8 KiB of tables.
// Source: RFC 3720, appendix B.4; tables of eight bytes at once: Kounavis and Berry 2005.
uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t crc = 0);

}  // namespace sherd
