#include "sherd/runtime/kernels/cross_entropy.h"

#include <vector>

#include "sherd/runtime/kernels/internal/indices.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

using internal::RowView;

std::vector<int64_t> CheckOperands(const Tensor& logits, const Tensor& targets,
                                   int64_t ignore_index, const Tensor& lse, std::string_view op) {
  SHERD_CHECK(logits.rank() >= 1 && targets.numel() == lse.numel() &&
                  (logits.numel() == 0 || targets.numel() == logits.shape().rows()),
              "targets do not fit the logits of a cross-entropy");
  SHERD_CHECK(lse.dtype() == internal::ComputeDType(logits.dtype()) && lse.is_contiguous(),
              "lse does not fit the logits of a cross-entropy");
  return internal::CheckedIndices(targets, logits.shape().back(), ignore_index, op, "target");
}

}  // namespace

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
                                const Tensor& lse) {
  const std::vector<int64_t> checked =
      CheckOperands(logits, targets, ignore_index, lse, "cross_entropy");
  CrossEntropyResult result;
  if (logits.numel() == 0) return result;
  const RowView from = internal::RowsOf(logits);
  const auto loop =
      internal::LoopsOf(logits.device()).row->cross_entropy[internal::FloatIndex(logits.dtype())];
  std::vector<double> losses(checked.size());
  logits.device().pool().ParallelFor(
      from.rows, internal::GrainOf(from.cols), [&](int64_t begin, int64_t end) {
        loop({.logits = from.row(begin),
              .lse = internal::Address(lse) + begin * SizeOf(lse.dtype()),
              .targets = checked.data() + begin,
              .loss = losses.data() + begin,
              .rows = end - begin,
              .cols = from.cols,
              .stride = from.stride});
      });
  for (size_t i = 0; i < losses.size(); ++i) {
    if (checked[i] < 0) continue;
    result.loss_sum += losses[i];
    ++result.count;
  }
  return result;
}

void CrossEntropyBackward(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
                          const Tensor& lse, double scale, const Tensor& grad_logits, Write write) {
  const std::vector<int64_t> checked =
      CheckOperands(logits, targets, ignore_index, lse, "cross_entropy_backward");
  SHERD_CHECK(grad_logits.dtype() == logits.dtype() && grad_logits.shape() == logits.shape(),
              "the gradient of a cross-entropy does not fit its logits");
  if (logits.numel() == 0) return;
  const RowView from = internal::RowsOf(logits), to = internal::RowsOf(grad_logits);
  const auto loop = internal::LoopsOf(logits.device())
                        .row->cross_entropy_backward[internal::FloatIndex(logits.dtype())];
  logits.device().pool().ParallelFor(
      from.rows, internal::GrainOf(from.cols), [&](int64_t begin, int64_t end) {
        loop({.logits = from.row(begin),
              .lse = internal::Address(lse) + begin * SizeOf(lse.dtype()),
              .grad = to.row(begin),
              .targets = checked.data() + begin,
              .rows = end - begin,
              .cols = from.cols,
              .stride = from.stride,
              .grad_stride = to.stride,
              .scale = scale,
              .add = write == Write::kAdd});
      });
}

}  // namespace sherd::kernels
