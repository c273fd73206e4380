#include "sherd/runtime/kernels/broadcast.h"

#include "sherd/runtime/cuda/internal/map.h"

// Bytes moved, for elements of e bytes: reads e for each element of an operand that is not repeated
// (a repeated one stays in the caches), e more where it adds, and writes e.
namespace sherd::cuda {
namespace {

using kernels::Arithmetic;

template <typename F>
void WithArithmetic(Arithmetic op, const F& f) {
  switch (op) {
    case Arithmetic::kAdd:
      return f(math::AddOf{});
    case Arithmetic::kSub:
      return f(math::SubOf{});
    case Arithmetic::kMul:
      return f(math::MulOf{});
    case Arithmetic::kDiv:
      break;
  }
  f(math::DivOf{});
}

}  // namespace

void Kernels::Broadcast(Arithmetic op, const Tensor& a, const Tensor& b, const Tensor& out,
                        kernels::Write write) const {
  SHERD_CHECK(a.dtype() == b.dtype() &&
                  (out.dtype() == a.dtype() || out.dtype() == ComputeDTypeOf(a.dtype())),
              "operands of broadcast arithmetic differ in dtype");
  const Tensor wide_a = a.Expand(out.shape()), wide_b = b.Expand(out.shape());
  WithArithmetic(op, [&]<typename Op>(Op) {
    WithCompute(a.dtype(), [&]<typename C>(C) {
      RunMap<BinaryMap<Op, C>, 2, 1>({}, {&wide_a, &wide_b}, {{{&out, write}}});
    });
  });
}

}  // namespace sherd::cuda
