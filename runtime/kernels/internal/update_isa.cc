#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/philox.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

constexpr int64_t kWords = 256;  // of a block: 64 calls of Philox

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
