#include "sherd/runtime/kernels/pointwise_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

// The elements of both operands in f64, one after another.
struct Operands {
  Operands(const Tensor& x_in, const Tensor& targets)
      : x(Tensor::Empty(x_in.device(), DType::kF64, x_in.shape(), MemoryCategory::kWorkspace)),
        y(Tensor::Empty(x_in.device(), DType::kF64, x_in.shape(), MemoryCategory::kWorkspace)) {
    SHERD_CHECK(x_in.shape() == targets.shape(), "targets do not fit the input of a loss");
    Cast(x_in, x);
    Cast(targets, y);
  }
  Tensor x, y;
};

double Loss(PointwiseLoss loss, double x, double y) {
  if (loss == PointwiseLoss::kSquaredError) return (x - y) * (x - y);
  return std::max(x, 0.0) - x * y + std::log1p(std::exp(-std::abs(x)));
}

double Slope(PointwiseLoss loss, double x, double y) {
  if (loss == PointwiseLoss::kSquaredError) return 2.0 * (x - y);
  const double e = std::exp(-std::abs(x));  // never overflows
  return (x >= 0.0 ? 1.0 : e) / (1.0 + e) - y;
}

void CheckTargets(const Operands& operands, std::optional<double> ignored) {
  const double* const y = operands.y.data<double>();
  for (int64_t i = 0; i < operands.y.numel(); ++i) {
    if ((ignored && y[i] == *ignored) || (y[i] >= 0.0 && y[i] <= 1.0)) continue;
    ThrowInvalidArgument(absl::StrCat("label ", y[i], " at index ", i, " is outside [0, 1]"),
                         {.op = "bce_with_logits"});
  }
}

}  // namespace

PointwiseLossResult PointwiseLossSum(PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                                     std::optional<double> ignored) {
  if (const KernelBackend* const other = BackendOf(x)) {
    return other->PointwiseLossSum(loss, x, targets, ignored);
  }
  PointwiseLossResult result;
  if (x.numel() == 0) return result;
  const Operands operands(x, targets);
  if (loss == PointwiseLoss::kBceWithLogits) CheckTargets(operands, ignored);
  const double* const from = operands.x.data<double>();
  const double* const to = operands.y.data<double>();
  const int64_t n = x.numel(), grain = internal::kGrainElems;
  std::vector<PointwiseLossResult> parts(static_cast<size_t>((n + grain - 1) / grain));
  x.device().pool().ParallelFor(
      static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          PointwiseLossResult& sum = parts[static_cast<size_t>(part)];
          for (int64_t i = part * grain; i < std::min(n, (part + 1) * grain); ++i) {
            if (ignored && to[i] == *ignored) continue;
            sum.loss_sum += Loss(loss, from[i], to[i]);
            ++sum.count;
          }
        }
      });
  for (const PointwiseLossResult& part : parts) {
    result.loss_sum += part.loss_sum;
    result.count += part.count;
  }
  return result;
}

void PointwiseLossBackward(PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                           std::optional<double> ignored, double scale, const Tensor& grad_x,
                           Write write) {
  if (const KernelBackend* const other = BackendOf(x)) {
    return other->PointwiseLossBackward(loss, x, targets, ignored, scale, grad_x, write);
  }
  SHERD_CHECK(grad_x.shape() == x.shape(), "the gradient of a loss does not fit its input");
  if (x.numel() == 0) return;
  const Operands operands(x, targets);
  double* const at = operands.x.data<double>();
  const double* const y = operands.y.data<double>();
  x.device().pool().ParallelFor(x.numel(), internal::kGrainElems, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      at[i] = ignored && y[i] == *ignored ? 0.0 : scale * Slope(loss, at[i], y[i]);
    }
  });
  Cast(operands.x, grad_x, write);
}

}  // namespace sherd::kernels
