#include "sherd/runtime/kernels/rms_norm.h"

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/partials.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::RowView;

void CheckOperands(const Tensor& x, const Tensor& weight, const Tensor& inv_rms) {
  SHERD_CHECK(
      weight.dtype() == x.dtype() && weight.is_contiguous() && weight.numel() == x.shape().back(),
      "the weight of a norm does not fit its input");
  SHERD_CHECK(inv_rms.dtype() == internal::ComputeDType(x.dtype()) && inv_rms.is_contiguous() &&
                  inv_rms.numel() == x.shape().rows(),
              "inv_rms does not fit the input of its norm");
}

}  // namespace

void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out,
             const Tensor& inv_rms) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->RmsNorm(x, weight, eps, out, inv_rms);
  }
  if (!AreRowsPacked(x) || !weight.is_contiguous()) {
    return RmsNorm(PackRows(x), Pack(weight), eps, out, inv_rms);
  }
  CheckOperands(x, weight, inv_rms);
  SHERD_CHECK(out.dtype() == x.dtype() && out.shape() == x.shape(),
              "the output of a norm does not fit its input");
  if (x.numel() == 0) return;
  const RowView from = internal::RowsOf(x), to = internal::RowsOf(out);
  const auto loop = internal::LoopsOf(x.device()).row->rms_norm[internal::FloatIndex(x.dtype())];
  const int64_t inv_bytes = SizeOf(inv_rms.dtype());
  x.device().pool().ParallelFor(from.rows, internal::GrainOf(from.cols),
                                [&](int64_t begin, int64_t end) {
                                  loop({.x = from.row(begin),
                                        .weight = weight.raw(),
                                        .out = to.row(begin),
                                        .inv_rms = internal::Address(inv_rms) + begin * inv_bytes,
                                        .rows = end - begin,
                                        .cols = from.cols,
                                        .x_stride = from.stride,
                                        .out_stride = to.stride,
                                        .eps = eps});
                                });
}

void RmsNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                     const Tensor& inv_rms, const Tensor& grad_x, Write write_x,
                     const Tensor& grad_weight, Write write_weight) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->RmsNormBackward(grad, x, weight, inv_rms, grad_x, write_x, grad_weight,
                                  write_weight);
  }
  if (!AreRowsPacked(grad) || !AreRowsPacked(x) || !weight.is_contiguous()) {
    return RmsNormBackward(PackRows(grad), PackRows(x), Pack(weight), inv_rms, grad_x, write_x,
                           grad_weight, write_weight);
  }
  CheckOperands(x, weight, inv_rms);
  const bool want_x = grad_x.defined(), want_weight = grad_weight.defined();
  SHERD_CHECK(grad.dtype() == x.dtype() && grad.shape() == x.shape() &&
                  (!want_x || (grad_x.dtype() == x.dtype() && grad_x.shape() == x.shape())),
              "the gradients of a norm do not fit its input");
  if (x.numel() == 0) {
    if (want_weight && write_weight == Write::kOverwrite) Fill(grad_weight, 0.0);
    return;
  }
  const RowView from_grad = internal::RowsOf(grad), from_x = internal::RowsOf(x);
  const RowView to = want_x ? internal::RowsOf(grad_x) : RowView{};
  const int64_t cols = from_x.cols;
  const internal::RowBlocks blocks(from_x.rows);
  const Tensor partials = internal::Partials(want_weight, x, blocks, cols);
  const auto loop =
      internal::LoopsOf(x.device()).row->rms_norm_backward[internal::FloatIndex(x.dtype())];
  const int64_t inv_bytes = SizeOf(inv_rms.dtype());
  x.device().pool().ParallelFor(blocks.count(), internal::GrainOf(blocks.block * cols),
                                [&](int64_t begin, int64_t end) {
                                  for (int64_t b = begin; b < end; ++b) {
                                    const int64_t row = b * blocks.block;
                                    loop({.grad = from_grad.row(row),
                                          .x = from_x.row(row),
                                          .weight = weight.raw(),
                                          .inv_rms = internal::Address(inv_rms) + row * inv_bytes,
                                          .grad_x = want_x ? to.row(row) : nullptr,
                                          .weight_partial = internal::PartialOf(partials, b),
                                          .rows = std::min(blocks.block, blocks.rows - row),
                                          .cols = cols,
                                          .grad_stride = from_grad.stride,
                                          .x_stride = from_x.stride,
                                          .grad_x_stride = to.stride,
                                          .add_x = write_x == Write::kAdd});
                                  }
                                });
  internal::AddUp(partials, grad_weight, write_weight);
}

}  // namespace sherd::kernels
