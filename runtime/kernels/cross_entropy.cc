#include "sherd/runtime/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/indices.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::RowView;

constexpr double kNone = -std::numeric_limits<double>::infinity();

// log(e^a + e^b)
double LogAddExp(double a, double b) {
  const double most = std::max(a, b);
  return most == kNone || std::isnan(a + b) ? a + b : most + std::log1p(std::exp(-std::abs(a - b)));
}

void CheckLse(const Tensor& lse, DType dtype, size_t rows) {
  SHERD_CHECK(lse.dtype() == internal::ComputeDType(dtype) && lse.is_contiguous() &&
                  lse.numel() == static_cast<int64_t>(rows),
              "lse does not fit the logits of a cross-entropy");
}

template <typename T>
void Store(const std::vector<double>& from, const Tensor& to) {
  std::transform(from.begin(), from.end(), to.data<T>(),
                 [](double x) { return static_cast<T>(x); });
}

}  // namespace

CrossEntropyPieces::CrossEntropyPieces(const Tensor& targets, int64_t classes,
                                       const CrossEntropyOptions& options)
    : options_(options), classes_(classes) {
  if (const KernelBackend* const other = BackendOf(targets)) {
    other_ = other->MakeCrossEntropyPieces(targets, classes, options);
    return;
  }
  targets_ =
      internal::CheckedIndices(targets, classes, options.ignore_index, "cross_entropy", "target");
}

void CrossEntropyPieces::Add(const Tensor& logits, int64_t first) {
  if (other_ != nullptr) return other_->Add(logits, first);
  SHERD_CHECK(logits.rank() >= 1 && first + logits.shape().back() <= classes_,
              "logits do not fit the classes of a cross-entropy");
  if (logits.numel() == 0) return;
  const Tensor packed = PackRows(logits);
  const RowView from = internal::RowsOf(packed);
  SHERD_CHECK(from.rows == static_cast<int64_t>(targets_.size()),
              "targets do not fit the logits of a cross-entropy");
  const bool smooth = options_.label_smoothing != 0.0;
  std::vector<double> lse(targets_.size()), sums(smooth ? targets_.size() : 0);
  target_logit_.resize(targets_.size());
  const auto loop =
      internal::LoopsOf(logits.device()).row->cross_entropy[internal::FloatIndex(logits.dtype())];
  logits.device().pool().ParallelFor(from.rows, internal::GrainOf(from.cols),
                                     [&](int64_t begin, int64_t end) {
                                       internal::CrossEntropyArgs args = {};
                                       args.logits = from.row(begin);
                                       args.targets = targets_.data() + begin;
                                       args.first = first;
                                       args.rows = end - begin;
                                       args.cols = from.cols;
                                       args.stride = from.stride;
                                       args.row_lse = lse.data() + begin;
                                       args.target_logit = target_logit_.data() + begin;
                                       args.logit_sum = smooth ? sums.data() + begin : nullptr;
                                       loop(args);
                                     });
  if (first == 0) {
    lse_ = std::move(lse);
    logit_sum_ = std::move(sums);
    return;
  }
  for (size_t i = 0; i < lse.size(); ++i) lse_[i] = LogAddExp(lse_[i], lse[i]);
  for (size_t i = 0; i < sums.size(); ++i) logit_sum_[i] += sums[i];
}

CrossEntropyResult CrossEntropyPieces::Finish(const Tensor& lse) const {
  if (other_ != nullptr) return other_->Finish(lse);
  CrossEntropyResult result;
  if (lse_.empty()) return result;
  SHERD_CHECK(lse.is_contiguous() && lse.numel() == static_cast<int64_t>(lse_.size()),
              "lse does not fit the rows of a cross-entropy");
  lse.dtype() == DType::kF64 ? Store<double>(lse_, lse) : Store<float>(lse_, lse);
  const double s = options_.label_smoothing, z = options_.z_loss;
  for (size_t i = 0; i < lse_.size(); ++i) {
    if (targets_[i] < 0) continue;
    double loss = lse_[i] - target_logit_[i];
    if (s != 0.0) {
      loss = (1.0 - s) * loss + s * (lse_[i] - logit_sum_[i] / static_cast<double>(classes_));
    }
    if (z != 0.0) loss += z * lse_[i] * lse_[i];
    result.loss_sum += loss;
    ++result.count;
  }
  return result;
}

void CrossEntropyPieces::Backward(const Tensor& logits, int64_t first, const Tensor& lse,
                                  double scale, const Tensor& grad, Write write) const {
  if (other_ != nullptr) return other_->Backward(logits, first, lse, scale, grad, write);
  CheckLse(lse, logits.dtype(), targets_.size());
  SHERD_CHECK(grad.dtype() == logits.dtype() && grad.shape() == logits.shape() &&
                  first + logits.shape().back() <= classes_,
              "the gradient of a cross-entropy does not fit its logits");
  if (logits.numel() == 0) return;
  const Tensor packed = PackRows(logits);
  const RowView from = internal::RowsOf(packed), to = internal::RowsOf(grad);
  SHERD_CHECK(from.rows == static_cast<int64_t>(targets_.size()),
              "targets do not fit the logits of a cross-entropy");
  const auto loop = internal::LoopsOf(logits.device())
                        .row->cross_entropy_backward[internal::FloatIndex(logits.dtype())];
  logits.device().pool().ParallelFor(
      from.rows, internal::GrainOf(from.cols), [&](int64_t begin, int64_t end) {
        internal::CrossEntropyArgs args = {};
        args.logits = from.row(begin);
        args.targets = targets_.data() + begin;
        args.first = first;
        args.rows = end - begin;
        args.cols = from.cols;
        args.stride = from.stride;
        args.lse = internal::Address(lse) + begin * SizeOf(lse.dtype());
        args.grad = to.row(begin);
        args.grad_stride = to.stride;
        args.scale = scale;
        args.z_slope = 2.0 * options_.z_loss;
        args.on_target = 1.0 - options_.label_smoothing;
        args.on_all = options_.label_smoothing / static_cast<double>(classes_);
        args.add = write == Write::kAdd;
        loop(args);
      });
}

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                const CrossEntropyOptions& options, const Tensor& lse) {
  if (const KernelBackend* const other = BackendOf(logits)) {
    return other->CrossEntropy(logits, targets, options, lse);
  }
  SHERD_CHECK(logits.rank() >= 1, "logits are a scalar");
  CheckLse(lse, logits.dtype(), static_cast<size_t>(targets.numel()));
  CrossEntropyPieces pieces(targets, logits.shape().back(), options);
  pieces.Add(logits, 0);
  return pieces.Finish(lse);
}

void CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                          const CrossEntropyOptions& options, const Tensor& lse, double scale,
                          const Tensor& grad_logits, Write write) {
  if (const KernelBackend* const other = BackendOf(logits)) {
    return other->CrossEntropyBackward(logits, targets, options, lse, scale, grad_logits, write);
  }
  SHERD_CHECK(logits.rank() >= 1, "logits are a scalar");
  CrossEntropyPieces(targets, logits.shape().back(), options)
      .Backward(logits, 0, lse, scale, grad_logits, write);
}

}  // namespace sherd::kernels
