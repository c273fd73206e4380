#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/transpose.h"

// Random words for dropout, a vector of counters at a time.
namespace sherd::kernels::SHERD_ISA {

// 64-bit lanes of which only the lower halves mean something.
using Wide = Vector<uint64_t>;
typedef uint32_t Word __attribute__((may_alias));

// The 64-bit products of the lower halves.
SHERD_INLINE Wide MulLower(Wide a, Wide b) {
#if defined(__AVX512F__)
  // The masked form: the plain one makes g++ 12 warn of an uninitialised value in its own header.
  return (Wide)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// `calls` calls of Philox4x32-10, rounded up to vectors: four words for each of the counters
// (sample, high), (sample, high + 1), ...
static void PhiloxWords(uint64_t key, uint64_t sample, uint64_t high, int64_t calls,
                        Word* SHERD_RESTRICT words) {
  Wide lane = {};
  for (int64_t i = 0; i < kLanes<uint64_t>; ++i) lane[i] = static_cast<uint64_t>(i);
  for (int64_t call = 0; call < calls; call += kLanes<uint64_t>) {
    Wide c0 = sample + Wide{};
    Wide c1 = (sample >> 32) + Wide{};
    // No carry into the upper half: channels, and with them calls, stay within their bits.
    Wide c2 = (high + static_cast<uint64_t>(call)) + lane;
    Wide c3 = (high >> 32) + Wide{};
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const Wide p0 = MulLower(c0, uint64_t{0xD2511F53u} + Wide{});
      const Wide p1 = MulLower(c2, uint64_t{0xCD9E8D57u} + Wide{});
      c0 = (p1 >> 32) ^ c1 ^ uint64_t { k0 };
      c1 = p1;
      c2 = (p0 >> 32) ^ c3 ^ uint64_t { k1 };
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const Wide first = (c0 & 0xffffffffu) | c1 << 32;
    const Wide second = (c2 & 0xffffffffu) | c3 << 32;
    const Interleaved<uint64_t> pairs = Interleave<uint64_t>(first, second);
    *reinterpret_cast<Wide*>(words + 4 * call) = pairs.low;
    *reinterpret_cast<Wide*>(words + 4 * call + 2 * kLanes<uint64_t>) = pairs.high;
  }
}

}  // namespace sherd::kernels::SHERD_ISA
