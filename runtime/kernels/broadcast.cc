#include "sherd/runtime/kernels/broadcast.h"

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

// For operands of `dtype`; `wide`: the output is f32 and they are not.
internal::BroadcastLoops::Loop LoopFor(const Device& device, Arithmetic op, DType dtype,
                                       bool wide) {
  const internal::BroadcastLoops& loops = *internal::LoopsOf(device).broadcast;
  const int index = internal::FloatIndex(dtype);
  switch (op) {
    case Arithmetic::kAdd:
      return (wide ? loops.wide_add : loops.add)[index];
    case Arithmetic::kSub:
      return (wide ? loops.wide_sub : loops.sub)[index];
    case Arithmetic::kMul:
      return (wide ? loops.wide_mul : loops.mul)[index];
    case Arithmetic::kDiv:
      break;
  }
  return (wide ? loops.wide_div : loops.div)[index];
}

}  // namespace

bool BroadcastShape(const Shape& a, const Shape& b, Shape& out) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape result = longer;
  for (int i = 0; i < shorter.rank(); ++i) {
    int64_t& extent = result[longer.rank() - 1 - i];
    if (extent == 1) {
      extent = shorter.back(i);
    } else if (shorter.back(i) != extent && shorter.back(i) != 1) {
      return false;
    }
  }
  out = result;
  return true;
}

void Broadcast(Arithmetic op, const Tensor& a, const Tensor& b, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Broadcast(op, a, b, out, write);
  }
  const bool wide = out.dtype() != a.dtype();
  SHERD_CHECK(a.dtype() == b.dtype() && (!wide || out.dtype() == internal::ComputeDType(a.dtype())),
              "operands of broadcast arithmetic differ in dtype");
  const Tensor wide_a = a.Expand(out.shape()), wide_b = b.Expand(out.shape());
  const auto loop = LoopFor(out.device(), op, a.dtype(), wide);
  const internal::RunLoop<3> run({&wide_a, &wide_b, &out}, 0b011);
  run.ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    loop({.a = at[0],
          .b = at[1],
          .out = at[2],
          .n = n,
          .a_step = run.step(0),
          .b_step = run.step(1),
          .add = write == Write::kAdd});
  });
}

}  // namespace sherd::kernels
