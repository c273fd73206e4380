#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

struct AddOf {
  template <typename C>
  SHERD_INLINE C Of(C a, C b) {
    return a + b;
  }
};
struct SubOf {
  template <typename C>
  SHERD_INLINE C Of(C a, C b) {
    return a - b;
  }
};
struct MulOf {
  template <typename C>
  SHERD_INLINE C Of(C a, C b) {
    return a * b;
  }
};
struct DivOf {
  template <typename C>
  SHERD_INLINE C Of(C a, C b) {
    return a / b;
  }
};

template <typename F, bool kAdd, int kStepA, int kStepB, typename T>
void Run(const internal::BroadcastArgs& args) {
  const T* const a = static_cast<const T*>(args.a);
  const T* const b = static_cast<const T*>(args.b);
  T* const out = static_cast<T*>(args.out);
  const Compute<T> first_a = Widen(a[0]), first_b = Widen(b[0]);
  SHERD_SIMD for (int64_t i = 0; i < args.n; ++i) {
    Put<kAdd>(out + i,
              F::Of(kStepA == 0 ? first_a : Widen(a[i]), kStepB == 0 ? first_b : Widen(b[i])));
  }
}

template <typename F, bool kAdd, typename T>
void Steps(const internal::BroadcastArgs& args) {
  if (args.a_step == 0) {
    args.b_step == 0 ? Run<F, kAdd, 0, 0, T>(args) : Run<F, kAdd, 0, 1, T>(args);
  } else {
    args.b_step == 0 ? Run<F, kAdd, 1, 0, T>(args) : Run<F, kAdd, 1, 1, T>(args);
  }
}

template <typename F, typename T>
void Broadcast(const internal::BroadcastArgs& args) {
  args.add ? Steps<F, true, T>(args) : Steps<F, false, T>(args);
}

}  // namespace

extern const internal::BroadcastLoops kBroadcastLoops;
const internal::BroadcastLoops kBroadcastLoops = {
    .add = SHERD_FLOATS(Broadcast, AddOf SHERD_COMMA),
    .sub = SHERD_FLOATS(Broadcast, SubOf SHERD_COMMA),
    .mul = SHERD_FLOATS(Broadcast, MulOf SHERD_COMMA),
    .div = SHERD_FLOATS(Broadcast, DivOf SHERD_COMMA),
};

}  // namespace sherd::kernels::SHERD_ISA
