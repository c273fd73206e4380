#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

constexpr int64_t kCalls = 64;  // Philox calls in flight

// Words of Philox4x32-10 for kCalls counters (sample, high + i), four words a call, in order.
void PhiloxWords(uint64_t key, uint64_t sample, uint64_t high, uint32_t* SHERD_RESTRICT words) {
  uint32_t c0[kCalls], c1[kCalls], c2[kCalls], c3[kCalls];
  SHERD_SIMD for (int64_t i = 0; i < kCalls; ++i) {
    // No carry: channels, and with them i, stay within their bits.
    c0[i] = static_cast<uint32_t>(sample);
    c1[i] = static_cast<uint32_t>(sample >> 32);
    c2[i] = static_cast<uint32_t>(high) + static_cast<uint32_t>(i);
    c3[i] = static_cast<uint32_t>(high >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    SHERD_SIMD for (int64_t i = 0; i < kCalls; ++i) {
      const uint64_t p0 = static_cast<uint64_t>(c0[i]) * 0xD2511F53u;
      const uint64_t p1 = static_cast<uint64_t>(c2[i]) * 0xCD9E8D57u;
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  SHERD_SIMD for (int64_t i = 0; i < kCalls; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

template <bool kAdd, typename T>
void DropoutRun(const T* x, const uint32_t* words, uint32_t threshold, Compute<T> scale, T* out,
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
  uint32_t words[4 * kCalls];
  for (int64_t c = 0; c < args.n; c += 4 * kCalls) {
    PhiloxWords(args.key, args.sample, args.counter_high + static_cast<uint64_t>(c / 4), words);
    const int64_t n = Min(4 * kCalls, args.n - c);
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
               {AdamW<Bf16, float, Bf16>, AdamW<Bf16, float, float>}}},
};

}  // namespace sherd::kernels::SHERD_ISA
