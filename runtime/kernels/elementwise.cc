#include "sherd/runtime/kernels/elementwise.h"

#include <cmath>
#include <cstring>

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/copy_strided.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::FloatIndex;
using internal::LoopsOf;
using internal::RunLoop;

void CheckSameDType(const Tensor& a, const Tensor& b) {
  SHERD_CHECK(a.dtype() == b.dtype(), "operands of an elementwise kernel differ in dtype");
}

void RunUnary(internal::UnaryLoop loop, const Tensor& x, const Tensor& out, bool add) {
  RunLoop<2>({&x, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    loop(at[0], at[1], n, add);
  });
}

void RunBinary(const internal::BinaryLoop (&loops)[internal::kFloatTypes], const Tensor& a,
               const Tensor& b, const Tensor& out, Write write) {
  CheckSameDType(a, out);
  CheckSameDType(b, out);
  const internal::BinaryLoop loop = loops[FloatIndex(out.dtype())];
  const bool add = write == Write::kAdd;
  RunLoop<3>({&a, &b, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    loop(at[0], at[1], at[2], n, add);
  });
}

void FillZero(const Tensor& out) {
  const int64_t elem_bytes = SizeOf(out.dtype());
  RunLoop<1>({&out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    std::memset(at[0], 0, static_cast<size_t>(n * elem_bytes));
  });
}

template <typename T>
void FillRuns(const Tensor& out, T value) {
  RunLoop<1>({&out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    std::fill_n(reinterpret_cast<T*>(at[0]), n, value);
  });
}

}  // namespace

void Add(const Tensor& a, const Tensor& b, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Add(a, b, out, write);
  }
  RunBinary(LoopsOf(out.device()).elementwise->add, a, b, out, write);
}

void Mul(const Tensor& a, const Tensor& b, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Mul(a, b, out, write);
  }
  RunBinary(LoopsOf(out.device()).elementwise->mul, a, b, out, write);
}

void Scale(const Tensor& x, double alpha, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Scale(x, alpha, out, write);
  }
  CheckSameDType(x, out);
  const auto loop = LoopsOf(out.device()).elementwise->scale[FloatIndex(out.dtype())];
  const bool add = write == Write::kAdd;
  RunLoop<2>({&x, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    loop(at[0], alpha, at[1], n, add);
  });
}

void Copy(const Tensor& x, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Copy(x, out, write);
  }
  CheckSameDType(x, out);
  if (internal::IsTransposedCopy(x, out)) {
    if (write == Write::kOverwrite) return internal::CopyStrided(x, out);
    const Tensor packed = Pack(x);  // which does not help where `out` is the transposed one
    if (!internal::IsTransposedCopy(packed, out)) return Copy(packed, out, write);
  }
  if (write == Write::kAdd) {
    const int index = FloatIndex(out.dtype());
    RunUnary(LoopsOf(out.device()).elementwise->cast[index][index], x, out, true);
    return;
  }
  const int64_t elem_bytes = SizeOf(out.dtype());
  RunLoop<2>({&x, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    if (at[0] != at[1]) std::memcpy(at[1], at[0], static_cast<size_t>(n * elem_bytes));
  });
}

void Cast(const Tensor& x, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Cast(x, out, write);
  }
  if (x.dtype() == out.dtype()) return Copy(x, out, write);
  RunUnary(LoopsOf(out.device()).elementwise->cast[FloatIndex(x.dtype())][FloatIndex(out.dtype())],
           x, out, write == Write::kAdd);
}

void Fill(const Tensor& out, double value) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Fill(out, value);
  }
  if (value == 0.0 && !std::signbit(value)) return FillZero(out);
  switch (out.dtype()) {
    case DType::kF32:
      return FillRuns(out, static_cast<float>(value));
    case DType::kF64:
      return FillRuns(out, value);
    case DType::kBF16:
      return FillRuns(out, BFloat16(static_cast<float>(value)));
    case DType::kF16:
      return FillRuns(out, Float16(static_cast<float>(value)));
    case DType::kI32:
      return FillRuns(out, static_cast<int32_t>(value));
    case DType::kI64:
      return FillRuns(out, static_cast<int64_t>(value));
  }
}

void Silu(const Tensor& x, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Silu(x, out);
  }
  CheckSameDType(x, out);
  RunUnary(LoopsOf(out.device()).elementwise->silu[FloatIndex(out.dtype())], x, out, false);
}

void SiluBackward(const Tensor& grad, const Tensor& x, const Tensor& grad_x, Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->SiluBackward(grad, x, grad_x, write);
  }
  RunBinary(LoopsOf(grad_x.device()).elementwise->silu_backward, grad, x, grad_x, write);
}

void SiluMul(const Tensor& gate, const Tensor& up, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->SiluMul(gate, up, out);
  }
  RunBinary(LoopsOf(out.device()).elementwise->silu_mul, gate, up, out, Write::kOverwrite);
}

void SiluMulBackward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                     const Tensor& grad_gate, Write write_gate, const Tensor& grad_up,
                     Write write_up) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->SiluMulBackward(grad, gate, up, grad_gate, write_gate, grad_up, write_up);
  }
  CheckSameDType(grad, gate);
  CheckSameDType(grad, up);
  // A skipped gradient takes the place of an input in the loop and is never touched.
  const Tensor& to_gate = grad_gate.defined() ? grad_gate : gate;
  const Tensor& to_up = grad_up.defined() ? grad_up : up;
  CheckSameDType(grad, to_gate);
  CheckSameDType(grad, to_up);
  const auto loop = LoopsOf(grad.device()).elementwise->silu_mul_backward[FloatIndex(grad.dtype())];
  RunLoop<5>({&grad, &gate, &up, &to_gate, &to_up})
      .ForEach(grad.device().pool(), [&](const auto& at, int64_t n) {
        loop({.grad = at[0],
              .gate = at[1],
              .up = at[2],
              .grad_gate = grad_gate.defined() ? at[3] : nullptr,
              .grad_up = grad_up.defined() ? at[4] : nullptr,
              .add_gate = write_gate == Write::kAdd,
              .add_up = write_up == Write::kAdd},
             n);
      });
}

}  // namespace sherd::kernels
