#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace sherd {

// Philox4x32-10: four random words from a 64-bit key and a 128-bit counter, without state.
//
// Equal arguments give equal words on every machine and in every order of calls, which is what
// makes recomputation and resharding exact. Source: Salmon et al. 2011, "Parallel Random Numbers:
// As Easy as 1, 2, 3".
constexpr std::array<uint32_t, 4> Philox4x32(uint64_t key, uint64_t counter_low,
                                             uint64_t counter_high) {
  std::array<uint32_t, 4> c = {
      static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
      static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Mixes 64 bits so that every input bit changes every output bit with probability one half.
// Source: the finaliser of SplitMix64, Steele et al. 2014.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Folds `value` into a running hash; the order of calls matters. Keys of random streams are chains
// of these: seed, purpose, step, path.
constexpr uint64_t Mix64(uint64_t hash, uint64_t value) { return Mix64(hash ^ Mix64(value)); }

// A hash of a name, the same on every machine: FNV-1a, then mixed, since keys need all their bits.
constexpr uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return Mix64(hash);
}

// A uniform value in (0, 1) from 32 random bits; neither end is ever reached, so its logarithm is
// finite.
constexpr double UniformOpen(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// A standard normal value from two words of one Philox call; its magnitude is at most 6.8.
// Source: Box and Muller 1958, "A Note on the Generation of Random Normal Deviates".
inline double Normal(uint32_t a, uint32_t b) {
  return std::sqrt(-2.0 * std::log(UniformOpen(a))) *
         std::cos(2.0 * std::numbers::pi * UniformOpen(b));
}

}  // namespace sherd
