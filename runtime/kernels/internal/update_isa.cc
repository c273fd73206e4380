#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/transpose.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

// 64-bit lanes of which only the lower halves mean something.
using Wide = Vector<uint64_t>;
typedef uint32_t Word __attribute__((may_alias));
constexpr int64_t kWords = 256;  // of a block: 64 calls of Philox

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
void PhiloxWords(uint64_t key, uint64_t sample, uint64_t high, int64_t calls,
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

template <bool kAdd, typename T>
void DropoutRun(const T* x, const Word* words, uint32_t threshold, Compute<T> scale, T* out,
                int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    const Compute<T> value = Widen(x[i]) * scale;
    Put<kAdd>(out + i, words[i] >= threshold ? value : Compute<T>(0));
  }
}

template <typename T>
void Dropout(const internal::DropoutArgs& args) {
  const T* const x = static_cast<const T*>(args.x);
  T* const out = static_cast<T*>(args.out);
  const auto scale = static_cast<Compute<T>>(args.scale);
  alignas(64) Word words[kWords];
  for (int64_t c = 0; c < args.n; c += kWords) {
    const int64_t n = Min(kWords, args.n - c);
    PhiloxWords(args.key, args.sample, args.counter_high + static_cast<uint64_t>(c / 4),
                (n + 3) / 4, words);
    args.add ? DropoutRun<true>(x + c, words, args.threshold, scale, out + c, n)
             : DropoutRun<false>(x + c, words, args.threshold, scale, out + c, n);
  }
}

template <typename T, typename Grad, typename Moment>
void AdamW(const internal::AdamWArgs& args, int64_t n) {
  using C = Compute<T>;
  T* const param = static_cast<T*>(args.param);
  const Grad* const grad = static_cast<const Grad*>(args.grad);
  Moment* const m = static_cast<Moment*>(args.m);
  Moment* const v = static_cast<Moment*>(args.v);
  const C beta1 = static_cast<C>(args.beta1), new1 = static_cast<C>(args.one_minus_beta1);
  const C beta2 = static_cast<C>(args.beta2), new2 = static_cast<C>(args.one_minus_beta2);
  const C eps = static_cast<C>(args.eps), decay = static_cast<C>(args.decay);
  const C step_size = static_cast<C>(args.step_size), inv_bias2 = static_cast<C>(args.inv_bias2);
  const C grad_scale = static_cast<C>(args.grad_scale);
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    const C g = grad_scale * static_cast<C>(Widen(grad[i]));
    const C first = beta1 * static_cast<C>(Widen(m[i])) + new1 * g;
    const C second = beta2 * static_cast<C>(Widen(v[i])) + new2 * (g * g);
    Put<false>(m + i, first);
    Put<false>(v + i, second);
    const C root = static_cast<C>(sizeof(C) == 8 ? __builtin_sqrt(second * inv_bias2)
                                                 : __builtin_sqrtf(second * inv_bias2));
    Put<false>(param + i, decay * Widen(param[i]) - step_size * first / (root + eps));
  }
}

}  // namespace

extern const internal::UpdateLoops kUpdateLoops;
const internal::UpdateLoops kUpdateLoops = {
    .dropout = SHERD_FLOATS(Dropout),
    .adamw = {{{AdamW<float, float, float>, AdamW<float, float, float>},
               {AdamW<float, float, float>, AdamW<float, float, float>}},
              {{AdamW<double, double, double>, AdamW<double, double, double>},
               {AdamW<double, double, double>, AdamW<double, double, double>}},
              {{AdamW<Bf16, Bf16, Bf16>, AdamW<Bf16, Bf16, float>},
               {AdamW<Bf16, float, Bf16>, AdamW<Bf16, float, float>}},
              {{AdamW<F16, F16, F16>, AdamW<F16, F16, float>},
               {AdamW<F16, float, F16>, AdamW<F16, float, float>}}},
};

}  // namespace sherd::kernels::SHERD_ISA
