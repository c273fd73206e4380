#include "sherd/runtime/kernels/internal/functions.h"
#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/runs.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

template <bool kAdd, typename T>
void ScaleRun(const T* x, Compute<T> alpha, T* out, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) Put<kAdd>(out + i, alpha * Widen(x[i]));
}

template <typename T>
void Scale(const void* x, double alpha, void* out, int64_t n, bool add) {
  const T* const from = static_cast<const T*>(x);
  const auto factor = static_cast<Compute<T>>(alpha);
  T* const to = static_cast<T*>(out);
  add ? ScaleRun<true>(from, factor, to, n) : ScaleRun<false>(from, factor, to, n);
}

template <bool kAdd, typename From, typename To>
void CastRun(const From* x, To* out, int64_t n) {
  using C = decltype(Compute<From>() + Compute<To>());
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) Put<kAdd>(out + i, static_cast<C>(Widen(x[i])));
}

template <typename From, typename To>
void Cast(const void* x, void* out, int64_t n, bool add) {
  const From* const from = static_cast<const From*>(x);
  To* const to = static_cast<To*>(out);
  add ? CastRun<true>(from, to, n) : CastRun<false>(from, to, n);
}

template <bool kAdd, typename T>
void SiluMulGate(const T* grad, const T* gate, const T* up, T* out, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    Put<kAdd>(out + i, Widen(grad[i]) * Widen(up[i]) * SiluSlope(Widen(gate[i])));
  }
}

template <bool kAdd, typename T>
void SiluMulUp(const T* grad, const T* gate, T* out, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    Put<kAdd>(out + i, Widen(grad[i]) * Silu(Widen(gate[i])));
  }
}

template <typename T>
void SiluMulBoth(const T* grad, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t n) {
  SHERD_SIMD for (int64_t i = 0; i < n; ++i) {
    const auto of = SiluMulBackwardOf(Widen(grad[i]), Widen(gate[i]), Widen(up[i]));
    Put<false>(grad_gate + i, of.gate);
    Put<false>(grad_up + i, of.up);
  }
}

template <typename T>
void SiluMulBackward(const internal::SiluMulBackwardArgs& args, int64_t n) {
  // Short pieces, so that where one gradient overwrites what the other needs, the piece is still
  // read in time, and so that the second loop reads from the nearest cache.
  constexpr int64_t kPiece = 1024;
  T copy[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = Min(kPiece, n - i);
    const T* const grad = static_cast<const T*>(args.grad) + i;
    const T* gate = static_cast<const T*>(args.gate) + i;
    const T* const up = static_cast<const T*>(args.up) + i;
    T* const grad_gate = args.grad_gate == nullptr ? nullptr : static_cast<T*>(args.grad_gate) + i;
    T* const grad_up = args.grad_up == nullptr ? nullptr : static_cast<T*>(args.grad_up) + i;
    if (grad_gate != nullptr && grad_up != nullptr && !args.add_gate && !args.add_up) {
      SiluMulBoth(grad, gate, up, grad_gate, grad_up, m);
      continue;
    }
    if (grad_gate == gate) {
      for (int64_t j = 0; j < m; ++j) copy[j] = gate[j];
      gate = copy;
    }
    if (grad_gate != nullptr) {
      args.add_gate ? SiluMulGate<true>(grad, gate, up, grad_gate, m)
                    : SiluMulGate<false>(grad, gate, up, grad_gate, m);
    }
    if (grad_up != nullptr) {
      args.add_up ? SiluMulUp<true>(grad, gate, grad_up, m)
                  : SiluMulUp<false>(grad, gate, grad_up, m);
    }
  }
}

}  // namespace

extern const internal::ElementwiseLoops kElementwiseLoops;
const internal::ElementwiseLoops kElementwiseLoops = {
    .add = SHERD_FLOATS(Binary, AddOf SHERD_COMMA),
    .mul = SHERD_FLOATS(Binary, MulOf SHERD_COMMA),
    .scale = SHERD_FLOATS(Scale),
    .cast = {SHERD_FLOATS(Cast, float SHERD_COMMA), SHERD_FLOATS(Cast, double SHERD_COMMA),
             SHERD_FLOATS(Cast, Bf16 SHERD_COMMA), SHERD_FLOATS(Cast, F16 SHERD_COMMA)},
    .silu = SHERD_FLOATS(Unary, SiluOf SHERD_COMMA),
    .silu_backward = SHERD_FLOATS(Binary, SiluBackwardOf SHERD_COMMA),
    .silu_mul = SHERD_FLOATS(Binary, SiluMulOf SHERD_COMMA),
    .silu_mul_backward = SHERD_FLOATS(SiluMulBackward),
};

}  // namespace sherd::kernels::SHERD_ISA
