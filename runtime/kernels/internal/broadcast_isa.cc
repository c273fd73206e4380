#include "sherd/runtime/kernels/internal/functions.h"
#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

template <typename F, typename Out, bool kAdd, int kStepA, int kStepB, typename T>
void Run(const internal::BroadcastArgs& args) {
  const T* const a = static_cast<const T*>(args.a);
  const T* const b = static_cast<const T*>(args.b);
  Out* const out = static_cast<Out*>(args.out);
  const Compute<T> first_a = Widen(a[0]), first_b = Widen(b[0]);
  SHERD_SIMD for (int64_t i = 0; i < args.n; ++i) {
    Put<kAdd>(out + i,
              F::Of(kStepA == 0 ? first_a : Widen(a[i]), kStepB == 0 ? first_b : Widen(b[i])));
  }
}

template <typename F, typename Out, bool kAdd, typename T>
void Steps(const internal::BroadcastArgs& args) {
  if (args.a_step == 0) {
    args.b_step == 0 ? Run<F, Out, kAdd, 0, 0, T>(args) : Run<F, Out, kAdd, 0, 1, T>(args);
  } else {
    args.b_step == 0 ? Run<F, Out, kAdd, 1, 0, T>(args) : Run<F, Out, kAdd, 1, 1, T>(args);
  }
}

template <typename F, typename T>
void Broadcast(const internal::BroadcastArgs& args) {
  args.add ? Steps<F, T, true, T>(args) : Steps<F, T, false, T>(args);
}

template <typename F, typename T>
void BroadcastWide(const internal::BroadcastArgs& args) {
  args.add ? Steps<F, Compute<T>, true, T>(args) : Steps<F, Compute<T>, false, T>(args);
}

}  // namespace

extern const internal::BroadcastLoops kBroadcastLoops;
const internal::BroadcastLoops kBroadcastLoops = {
    .add = SHERD_FLOATS(Broadcast, AddOf SHERD_COMMA),
    .sub = SHERD_FLOATS(Broadcast, SubOf SHERD_COMMA),
    .mul = SHERD_FLOATS(Broadcast, MulOf SHERD_COMMA),
    .div = SHERD_FLOATS(Broadcast, DivOf SHERD_COMMA),
    .wide_add = SHERD_FLOATS(BroadcastWide, AddOf SHERD_COMMA),
    .wide_sub = SHERD_FLOATS(BroadcastWide, SubOf SHERD_COMMA),
    .wide_mul = SHERD_FLOATS(BroadcastWide, MulOf SHERD_COMMA),
    .wide_div = SHERD_FLOATS(BroadcastWide, DivOf SHERD_COMMA),
};

}  // namespace sherd::kernels::SHERD_ISA
