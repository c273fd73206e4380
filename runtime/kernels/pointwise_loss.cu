#include "sherd/runtime/kernels/pointwise_loss.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/reduce.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd::cuda {
namespace {

using kernels::PointwiseLoss;

constexpr int kThreads = 256;
constexpr int64_t kPart = 4096;  // elements of a partial sum

struct LossArgs {
  PointwiseLoss loss;
  double* x;  // the gradient takes its place
  const double* y;
  int64_t numel;
  bool has_ignored;
  double ignored;

  __device__ bool Counts(int64_t i) const { return !has_ignored || y[i] != ignored; }
};

// Sums over some of the elements, and the first target that is out of range: -1 if there is none.
struct Part {
  double loss_sum, count;
  int64_t bad;
  double label;
};

__device__ inline double LossOf(PointwiseLoss loss, double x, double y) {
  if (loss == PointwiseLoss::kSquaredError) return (x - y) * (x - y);
  return (x < 0.0 ? 0.0 : x) - x * y + log1p(exp(-fabs(x)));
}

__device__ inline double SlopeOf(PointwiseLoss loss, double x, double y) {
  if (loss == PointwiseLoss::kSquaredError) return 2.0 * (x - y);
  const double e = exp(-fabs(x));  // never overflows
  return (x >= 0.0 ? 1.0 : e) / (1.0 + e) - y;
}

struct Least {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

__global__ void __launch_bounds__(kThreads) SumParts(LossArgs args, Part* parts) {
  const int64_t begin = blockIdx.x * kPart;
  const int64_t end = begin + kPart < args.numel ? begin + kPart : args.numel;
  double sum = 0.0, count = 0.0;
  int64_t bad = args.numel;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    if (!args.Counts(i)) continue;
    const double y = args.y[i];
    sum += LossOf(args.loss, args.x[i], y);
    count += 1.0;
    if (args.loss == PointwiseLoss::kBceWithLogits && !(y >= 0.0 && y <= 1.0) && i < bad) bad = i;
  }
  sum = BlockSum(sum);
  count = BlockSum(count);
  bad = BlockReduce(bad, args.numel, Least{});
  if (threadIdx.x != 0) return;
  const bool found = bad < args.numel;
  parts[blockIdx.x] = {sum, count, found ? bad : -1, found ? args.y[bad] : 0.0};
}

// One block.
__global__ void __launch_bounds__(kThreads)
    SumOfParts(const Part* parts, int64_t count, Part* total) {
  double sum = 0.0, counted = 0.0;
  int64_t bad = count;  // the part that has the first one
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum += parts[i].loss_sum;
    counted += parts[i].count;
    if (parts[i].bad >= 0 && i < bad) bad = i;
  }
  sum = BlockSum(sum);
  counted = BlockSum(counted);
  bad = BlockReduce(bad, count, Least{});
  if (threadIdx.x != 0) return;
  const bool found = bad < count;
  *total = {sum, counted, found ? parts[bad].bad : -1, found ? parts[bad].label : 0.0};
}

__global__ void __launch_bounds__(kThreads) Slopes(LossArgs args, double scale) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < args.numel;
       i += int64_t{gridDim.x} * kThreads) {
    args.x[i] = args.Counts(i) ? scale * SlopeOf(args.loss, args.x[i], args.y[i]) : 0.0;
  }
}

// The elements of both operands in f64, one after another.
struct Operands {
  Operands(const Tensor& x_in, const Tensor& targets)
      : x(Tensor::Empty(x_in.device(), DType::kF64, x_in.shape(), MemoryCategory::kWorkspace)),
        y(Tensor::Empty(x_in.device(), DType::kF64, x_in.shape(), MemoryCategory::kWorkspace)) {
    SHERD_CHECK(x_in.shape() == targets.shape(), "targets do not fit the input of a loss");
    kernels::Cast(x_in, x);
    kernels::Cast(targets, y);
  }
  LossArgs ArgsFor(PointwiseLoss loss, std::optional<double> ignored) const {
    return {loss,      x.data<double>(),    y.data<double>(),
            x.numel(), ignored.has_value(), ignored.value_or(0.0)};
  }
  Tensor x, y;
};

}  // namespace

kernels::PointwiseLossResult Kernels::PointwiseLossSum(PointwiseLoss loss, const Tensor& x,
                                                       const Tensor& targets,
                                                       std::optional<double> ignored) const {
  if (x.numel() == 0) return {};
  const Device& device = x.device();
  const Operands operands(x, targets);
  const int64_t count = (x.numel() + kPart - 1) / kPart;
  const Tensor memory =
      Tensor::Empty(device, DType::kI64, {(count + 1) * int64_t{sizeof(Part) / sizeof(int64_t)}},
                    MemoryCategory::kWorkspace);
  Part* const parts = static_cast<Part*>(memory.raw());
  Launch(device, {.grid = static_cast<unsigned>(count), .block = kThreads}, &SumParts,
         operands.ArgsFor(loss, ignored), parts);
  Launch(device, {.grid = 1, .block = kThreads}, &SumOfParts, parts, count, parts + count);
  Part total = {};
  device.CopyToHost(&total, parts + count, sizeof(total));
  if (total.bad >= 0) {
    ThrowInvalidArgument(
        absl::StrCat("label ", total.label, " at index ", total.bad, " is outside [0, 1]"),
        {.op = "bce_with_logits"});
  }
  return {total.loss_sum, static_cast<int64_t>(total.count)};
}

void Kernels::PointwiseLossBackward(PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                                    std::optional<double> ignored, double scale,
                                    const Tensor& grad_x, kernels::Write write) const {
  SHERD_CHECK(grad_x.shape() == x.shape(), "the gradient of a loss does not fit its input");
  if (x.numel() == 0) return;
  const Operands operands(x, targets);
  Launch(x.device(), {.grid = GridFor(x.device(), x.numel(), kThreads), .block = kThreads}, &Slopes,
         operands.ArgsFor(loss, ignored), scale);
  kernels::Cast(operands.x, grad_x, write);
}

}  // namespace sherd::cuda
