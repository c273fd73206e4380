#include "sherd/runtime/kernels/layer_norm.h"

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/partials.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::RowView;

void CheckStatistics(const Tensor& x, const Tensor& statistics) {
  SHERD_CHECK(statistics.dtype() == internal::ComputeDType(x.dtype()) &&
                  statistics.is_contiguous() && statistics.numel() == x.shape().rows(),
              "the statistics of a layer norm do not fit its input");
}

// A weight or bias as the loops read it; an undefined one is `missing` everywhere.
Tensor ColumnsOr(const Tensor& given, double missing, const Tensor& x) {
  const int64_t cols = x.shape().back();
  if (!given.defined()) {
    const Tensor all = Tensor::Empty(x.device(), x.dtype(), {cols}, MemoryCategory::kWorkspace);
    Fill(all, missing);
    return all;
  }
  SHERD_CHECK(given.dtype() == x.dtype() && given.numel() == cols,
              "the weight or bias of a layer norm does not fit its input");
  return Pack(given);
}

void CheckLike(const Tensor& a, const Tensor& x) {
  SHERD_CHECK(a.dtype() == x.dtype() && a.shape() == x.shape(),
              "operands of a layer norm do not fit its input");
}

}  // namespace

void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
               const Tensor& out, const Tensor& mean, const Tensor& inv_std) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->LayerNorm(x, weight, bias, eps, out, mean, inv_std);
  }
  CheckLike(out, x);
  CheckStatistics(x, mean);
  CheckStatistics(x, inv_std);
  if (x.numel() == 0) return;
  const Tensor packed = PackRows(x), w = ColumnsOr(weight, 1.0, x), b = ColumnsOr(bias, 0.0, x);
  const RowView from = internal::RowsOf(packed), to = internal::RowsOf(out);
  const auto loop =
      internal::LoopsOf(x.device()).layer_norm->forward[internal::FloatIndex(x.dtype())];
  const int64_t statistic_bytes = SizeOf(mean.dtype());
  x.device().pool().ParallelFor(
      from.rows, internal::GrainOf(from.cols), [&](int64_t begin, int64_t end) {
        loop({.x = from.row(begin),
              .weight = w.raw(),
              .bias = b.raw(),
              .out = to.row(begin),
              .mean = internal::Address(mean) + begin * statistic_bytes,
              .inv_std = internal::Address(inv_std) + begin * statistic_bytes,
              .rows = end - begin,
              .cols = from.cols,
              .x_stride = from.stride,
              .out_stride = to.stride,
              .eps = eps});
      });
}

void LayerNormBackward(const Tensor& grad, const Tensor& x_or_none, const Tensor& weight,
                       const Tensor& mean, const Tensor& inv_std, const LayerNormGradients& to) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->LayerNormBackward(grad, x_or_none, weight, mean, inv_std, to);
  }
  // Stands in for an x that nothing reads.
  const Tensor& x = x_or_none.defined() ? x_or_none : grad;
  const bool want_x = to.x.defined();
  SHERD_CHECK(x_or_none.defined() || !(want_x || to.weight.defined()),
              "a gradient of a layer norm needs its input");
  CheckLike(grad, x);
  CheckStatistics(x, mean);
  CheckStatistics(x, inv_std);
  if (want_x) CheckLike(to.x, x);
  if (x.numel() == 0) {
    if (to.weight.defined() && to.write_weight == Write::kOverwrite) Fill(to.weight, 0.0);
    if (to.bias.defined() && to.write_bias == Write::kOverwrite) Fill(to.bias, 0.0);
    return;
  }
  const Tensor packed_grad = PackRows(grad), packed_x = PackRows(x), w = ColumnsOr(weight, 1.0, x);
  const RowView from_grad = internal::RowsOf(packed_grad), from_x = internal::RowsOf(packed_x);
  const RowView to_x = want_x ? internal::RowsOf(to.x) : RowView{};
  const internal::RowBlocks blocks(from_x.rows);
  const Tensor to_weight = internal::Partials(to.weight.defined(), x, blocks, from_x.cols);
  const Tensor to_bias = internal::Partials(to.bias.defined(), x, blocks, from_x.cols);
  const auto loop =
      internal::LoopsOf(x.device()).layer_norm->backward[internal::FloatIndex(x.dtype())];
  const int64_t statistic_bytes = SizeOf(mean.dtype());
  x.device().pool().ParallelFor(
      blocks.count(), internal::GrainOf(blocks.block * from_x.cols),
      [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          const int64_t row = b * blocks.block;
          loop({.grad = from_grad.row(row),
                .x = from_x.row(row),
                .weight = w.raw(),
                .mean = internal::Address(mean) + row * statistic_bytes,
                .inv_std = internal::Address(inv_std) + row * statistic_bytes,
                .grad_x = want_x ? to_x.row(row) : nullptr,
                .weight_partial = internal::PartialOf(to_weight, b),
                .bias_partial = internal::PartialOf(to_bias, b),
                .rows = std::min(blocks.block, blocks.rows - row),
                .cols = from_x.cols,
                .grad_stride = from_grad.stride,
                .x_stride = from_x.stride,
                .grad_x_stride = to_x.stride,
                .add_x = to.write_x == Write::kAdd});
        }
      });
  internal::AddUp(to_weight, to.weight, to.write_weight);
  internal::AddUp(to_bias, to.bias, to.write_bias);
}

}  // namespace sherd::kernels
