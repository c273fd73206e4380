#include "sherd/runtime/kernels/optimizer_step.h"

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/optimizer_args.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

using internal::CheckPiece;

internal::UpdateOperand OperandOf(const Tensor& x) {
  if (!x.defined()) return {nullptr, 0};
  return {x.raw(), internal::FloatIndex(x.dtype())};
}

// Moves an operand on by `elems`.
void Advance(internal::UpdateOperand& x, int64_t elems) {
  if (x.data == nullptr) return;
  x.data = static_cast<char*>(x.data) + elems * SizeOf(static_cast<DType>(x.dtype));
}

// The loop that computes in the dtype this one is computed in.
template <typename Loop>
Loop LoopFor(const Loop (&loops)[2], const Tensor& x) {
  return loops[internal::ComputeDType(x.dtype()) == DType::kF64 ? 1 : 0];
}

}  // namespace

void AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
               const AdamWCoefficients& c) {
  if (const KernelBackend* const other = BackendOf(param)) {
    return other->AdamWStep(param, grad, m, v, c);
  }
  const int64_t n = param.numel();
  for (const Tensor* x : {&param, &grad, &m, &v}) CheckPiece(*x, n);
  if (n == 0) return;
  const auto loop = LoopFor(internal::LoopsOf(param.device()).update->adamw, param);
  internal::AdamWArgs shared = internal::ArgsOf(c);
  shared.param = OperandOf(param);
  shared.grad = OperandOf(grad);
  shared.m = OperandOf(m);
  shared.v = OperandOf(v);
  param.device().pool().ParallelFor(n, internal::kGrainElems, [&](int64_t begin, int64_t end) {
    internal::AdamWArgs args = shared;
    for (auto* x : {&args.param, &args.grad, &args.m, &args.v}) Advance(*x, begin);
    loop(args, end - begin);
  });
}

void SgdStep(const Tensor& param, const Tensor& grad, const Tensor& m, const SgdCoefficients& c) {
  if (const KernelBackend* const other = BackendOf(param)) {
    return other->SgdStep(param, grad, m, c);
  }
  const int64_t n = param.numel();
  for (const Tensor* x : {&param, &grad}) CheckPiece(*x, n);
  if (m.defined()) CheckPiece(m, n);
  if (n == 0) return;
  const auto loop = LoopFor(internal::LoopsOf(param.device()).update->sgd, param);
  internal::SgdArgs shared = internal::ArgsOf(c);
  shared.param = OperandOf(param);
  shared.grad = OperandOf(grad);
  shared.m = OperandOf(m);
  param.device().pool().ParallelFor(n, internal::kGrainElems, [&](int64_t begin, int64_t end) {
    internal::SgdArgs args = shared;
    for (auto* x : {&args.param, &args.grad, &args.m}) Advance(*x, begin);
    loop(args, end - begin);
  });
}

void MomentumStep(const Tensor& update, const Tensor& grad, const Tensor& m,
                  const MomentumCoefficients& c) {
  if (const KernelBackend* const other = BackendOf(update)) {
    return other->MomentumStep(update, grad, m, c);
  }
  const int64_t n = update.numel();
  for (const Tensor* x : {&update, &grad, &m}) CheckPiece(*x, n);
  SHERD_CHECK(internal::ComputeDType(update.dtype()) == update.dtype(),
              "the update of a momentum is f32 or f64");
  if (n == 0) return;
  const auto loop = LoopFor(internal::LoopsOf(update.device()).update->momentum, update);
  internal::MomentumArgs shared = internal::ArgsOf(c);
  shared.update = OperandOf(update);
  shared.grad = OperandOf(grad);
  shared.m = OperandOf(m);
  update.device().pool().ParallelFor(n, internal::kGrainElems, [&](int64_t begin, int64_t end) {
    internal::MomentumArgs args = shared;
    for (auto* x : {&args.update, &args.grad, &args.m}) Advance(*x, begin);
    loop(args, end - begin);
  });
}

}  // namespace sherd::kernels
