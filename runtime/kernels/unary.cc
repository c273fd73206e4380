#include "sherd/runtime/kernels/unary.h"

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/floats.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

using internal::FloatIndex;
using internal::RunLoop;

const internal::FunctionLoops& LoopsFor(const Device& device, UnaryFunction function) {
  const internal::UnaryLoops& loops = *internal::LoopsOf(device).unary;
  switch (function) {
    case UnaryFunction::kExp:
      return loops.exp;
    case UnaryFunction::kLog:
      return loops.log;
    case UnaryFunction::kTanh:
      return loops.tanh;
    case UnaryFunction::kSigmoid:
      return loops.sigmoid;
    case UnaryFunction::kRelu:
      return loops.relu;
    case UnaryFunction::kSqrt:
      return loops.sqrt;
    case UnaryFunction::kRsqrt:
      return loops.rsqrt;
    case UnaryFunction::kErf:
      return loops.erf;
    case UnaryFunction::kGelu:
      return loops.gelu;
    case UnaryFunction::kGeluTanh:
      return loops.gelu_tanh;
  }
  SHERD_CHECK(false, "there is no such function");
}

void CheckSameDType(const Tensor& a, const Tensor& b) {
  SHERD_CHECK(a.dtype() == b.dtype(), "operands of a function differ in dtype");
}

}  // namespace

void Unary(UnaryFunction function, const Tensor& x, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Unary(function, x, out);
  }
  CheckSameDType(x, out);
  const auto loop = LoopsFor(out.device(), function).forward[FloatIndex(out.dtype())];
  RunLoop<2>({&x, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    loop(at[0], at[1], n, false);
  });
}

void UnaryBackward(UnaryFunction function, const Tensor& grad, const Tensor& saved,
                   const Tensor& grad_x, Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->UnaryBackward(function, grad, saved, grad_x, write);
  }
  CheckSameDType(grad, grad_x);
  CheckSameDType(saved, grad_x);
  const auto loop = LoopsFor(grad_x.device(), function).backward[FloatIndex(grad_x.dtype())];
  const bool add = write == Write::kAdd;
  RunLoop<3>({&grad, &saved, &grad_x})
      .ForEach(grad_x.device().pool(),
               [&](const auto& at, int64_t n) { loop(at[0], at[1], at[2], n, add); });
}

void Clamp(const Tensor& x, double low, double high, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Clamp(x, low, high, out);
  }
  CheckSameDType(x, out);
  const auto loop = internal::LoopsOf(out.device()).unary->clamp[FloatIndex(out.dtype())];
  const double least = internal::RoundedTo(x.dtype(), low),
               most = internal::RoundedTo(x.dtype(), high);
  RunLoop<2>({&x, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    loop(at[0], least, most, at[1], n);
  });
}

void ClampBackward(const Tensor& grad, const Tensor& x, double low, double high,
                   const Tensor& grad_x, Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->ClampBackward(grad, x, low, high, grad_x, write);
  }
  CheckSameDType(grad, grad_x);
  CheckSameDType(x, grad_x);
  const auto loop =
      internal::LoopsOf(grad_x.device()).unary->clamp_backward[FloatIndex(grad_x.dtype())];
  const double least = internal::RoundedTo(x.dtype(), low),
               most = internal::RoundedTo(x.dtype(), high);
  const bool add = write == Write::kAdd;
  RunLoop<3>({&grad, &x, &grad_x}).ForEach(grad_x.device().pool(), [&](const auto& at, int64_t n) {
    loop(at[0], at[1], least, most, at[2], n, add);
  });
}

}  // namespace sherd::kernels
