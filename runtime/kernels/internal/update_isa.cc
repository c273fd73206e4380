#include "sherd/runtime/kernels/internal/functions.h"
#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/philox.h"
#include "sherd/runtime/kernels/internal/update.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

constexpr int64_t kWords = 256;  // of a block: 64 calls of Philox

template <bool kAdd, typename T>
void DropoutRun(const T* x, const Word* words, uint32_t threshold, Compute<T> scale, T* out,
                int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = words[i];
    Put<kAdd>(out + i, DropOf(Widen(x[i]), word, threshold, scale));
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

constexpr int64_t kBlock = 512;  // elements of an update that are unpacked together

template <typename C, typename T>
C* UnpackRun(const void* data, int64_t begin, int64_t n, C* buffer) {
  const T* const x = static_cast<const T*>(data) + begin;
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<C>(Widen(x[i]));
  return buffer;
}

// Elements [begin, begin + n) to compute with: where they are stored if they are stored as C, else
// unpacked into `buffer`. Null for no operand.
template <typename C>
C* Unpack(const internal::UpdateOperand& x, int64_t begin, int64_t n, C* buffer) {
  if (x.data == nullptr) return nullptr;
  constexpr int kStored = sizeof(C) == 8 ? 1 : 0;
  if (x.dtype == kStored) return static_cast<C*>(x.data) + begin;
  if (x.dtype == 0) return UnpackRun<C, float>(x.data, begin, n, buffer);
  if (x.dtype == 1) return UnpackRun<C, double>(x.data, begin, n, buffer);
  return x.dtype == 2 ? UnpackRun<C, Bf16>(x.data, begin, n, buffer)
                      : UnpackRun<C, F16>(x.data, begin, n, buffer);
}

template <typename C, typename T>
void PackRun(const C* computed, void* data, int64_t begin, int64_t n) {
  T* const x = static_cast<T*>(data) + begin;
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) Put<false>(x + i, computed[i]);
}

// Stores what was computed where Unpack put it.
template <typename C>
void Pack(const C* computed, const internal::UpdateOperand& x, int64_t begin, int64_t n) {
  constexpr int kStored = sizeof(C) == 8 ? 1 : 0;
  if (computed == nullptr || x.dtype == kStored) return;
  if (x.dtype == 0) return PackRun<C, float>(computed, x.data, begin, n);
  if (x.dtype == 1) return PackRun<C, double>(computed, x.data, begin, n);
  x.dtype == 2 ? PackRun<C, Bf16>(computed, x.data, begin, n)
               : PackRun<C, F16>(computed, x.data, begin, n);
}

// n elements of one stored type T.
template <typename C, typename T>
void AdamWRun(const AdamWNumbers<C>& c, T* param, const T* grad, T* m, T* v, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    const AdamWElement<C> next =
        AdamWOf<C>(c, Widen(grad[i]), {Widen(param[i]), Widen(m[i]), Widen(v[i])});
    Put<false>(m + i, next.m);
    Put<false>(v + i, next.v);
    Put<false>(param + i, next.param);
  }
}

// All operands are stored as T: none is unpacked.
template <typename C, typename T>
void AdamWStored(const internal::AdamWArgs& args, const AdamWNumbers<C>& numbers, int64_t n) {
  AdamWRun<C, T>(numbers, static_cast<T*>(args.param.data), static_cast<const T*>(args.grad.data),
                 static_cast<T*>(args.m.data), static_cast<T*>(args.v.data), n);
}

template <typename C>
void AdamW(const internal::AdamWArgs& args, int64_t n) {
  const AdamWNumbers<C> numbers = NumbersOf<C>(args);
  const int stored = args.param.dtype;
  if (args.grad.dtype == stored && args.m.dtype == stored && args.v.dtype == stored) {
    if constexpr (sizeof(C) == 4) {
      if (stored == 2) return AdamWStored<C, Bf16>(args, numbers, n);
      if (stored == 3) return AdamWStored<C, F16>(args, numbers, n);
    }
    return AdamWStored<C, C>(args, numbers, n);
  }
  alignas(64) C buffers[4][kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = Min(kBlock, n - begin);
    C* const param = Unpack(args.param, begin, count, buffers[0]);
    const C* const grad = Unpack(args.grad, begin, count, buffers[1]);
    C* const m = Unpack(args.m, begin, count, buffers[2]);
    C* const v = Unpack(args.v, begin, count, buffers[3]);
    AdamWRun<C, C>(numbers, param, grad, m, v, count);
    Pack(param, args.param, begin, count);
    Pack(m, args.m, begin, count);
    Pack(v, args.v, begin, count);
  }
}

template <typename C>
void Sgd(const internal::SgdArgs& args, int64_t n) {
  const SgdNumbers<C> numbers = NumbersOf<C>(args);
  alignas(64) C buffers[3][kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = Min(kBlock, n - begin);
    C* const param = Unpack(args.param, begin, count, buffers[0]);
    const C* const grad = Unpack(args.grad, begin, count, buffers[1]);
    C* const m = Unpack(args.m, begin, count, buffers[2]);
    if (m == nullptr) {
      SHERD_SIMD for (int64_t i = 0; i < count; ++i) {
        param[i] = SgdOf(numbers, grad[i], param[i]);
      }
    } else {
      SHERD_SIMD for (int64_t i = 0; i < count; ++i) {
        const SgdElement<C> next = SgdMomentumOf<C>(numbers, grad[i], {param[i], m[i]});
        m[i] = next.m;
        param[i] = next.param;
      }
      Pack(m, args.m, begin, count);
    }
    Pack(param, args.param, begin, count);
  }
}

template <typename C>
void Momentum(const internal::MomentumArgs& args, int64_t n) {
  const MomentumNumbers<C> numbers = NumbersOf<C>(args);
  alignas(64) C buffers[3][kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = Min(kBlock, n - begin);
    const C* const grad = Unpack(args.grad, begin, count, buffers[0]);
    C* const m = Unpack(args.m, begin, count, buffers[1]);
    C* const update = static_cast<C*>(args.update.data) + begin;
    SHERD_SIMD for (int64_t i = 0; i < count; ++i) {
      const MomentumElement<C> next = MomentumOf<C>(numbers, grad[i], m[i]);
      m[i] = next.m;
      update[i] = next.update;
    }
    Pack(m, args.m, begin, count);
  }
}

}  // namespace

extern const internal::UpdateLoops kUpdateLoops;
const internal::UpdateLoops kUpdateLoops = {
    .dropout = SHERD_FLOATS(Dropout),
    .adamw = {AdamW<float>, AdamW<double>},
    .sgd = {Sgd<float>, Sgd<double>},
    .momentum = {Momentum<float>, Momentum<double>},
};

}  // namespace sherd::kernels::SHERD_ISA
