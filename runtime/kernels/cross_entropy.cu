#include "sherd/runtime/kernels/cross_entropy.h"

#include <cmath>

#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/note_fault.h"
#include "sherd/runtime/cuda/internal/rows.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

using kernels::CrossEntropyOptions;
using kernels::CrossEntropyResult;
using kernels::internal::RowView;

constexpr int kThreads = 256;
constexpr int kTilePacks = 4;        // of a row, that a thread of the backward takes
constexpr int64_t kPartRows = 1024;  // rows of a partial sum of the loss

// targets[i] = ids[i], or -1 where it is the ignored one or out of range.
template <typename I>
__global__ void __launch_bounds__(kThreads)
    ReadTargets(const I* ids, int64_t count, int64_t ignored, IndexCheck check, int64_t* targets) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t id = ids[i];
    targets[i] = id != ignored && check.Passes(id, i) ? id : -1;
  }
}

// What is known of the rows once some of their classes were seen. On the device.
struct RowsSoFar {
  const int64_t* targets;
  double* lse;
  double* target_logit;
  double* logit_sum;  // null: not wanted
};

// The largest of some numbers and the sum of e^(x - largest). Nothing yet: -infinity and 0.
template <typename C>
struct MaxAndSum {
  C most, sum;

  // NaN and infinity do not become the largest; they come back with the exponentials.
  __device__ void Raise(C to) {
    if (!(to > most)) return;
    sum *= math::Exp(most - to);
    most = to;
  }
  __device__ C base() const { return most == -C(__builtin_inff()) ? C(0) : most; }
};

// log(e^a + e^b)
__device__ inline double LogAddExp(double a, double b) {
  const double most = a > b ? a : b;
  if (most == -__builtin_inf() || isnan(a + b)) return a + b;
  return most + log1p(exp(-fabs(a - b)));
}

template <typename T>
struct ForwardArgs {
  RowShape of;
  RowsAt<const T> logits;
  RowsSoFar rows;
  int64_t first;
};

// Each row is read once: what was summed is scaled when a larger logit comes.
template <typename T>
__global__ void __launch_bounds__(kMostRowThreads) Forward(ForwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  constexpr C kNone = -C(__builtin_inff());
  const RowShape of = args.of;
  for (int64_t r = FirstRow(); r < of.rows; r += RowStep()) {
    const T* const x = args.logits.row(r);
    MaxAndSum<C> seen = {kNone, C(0)};
    double total = 0.0;
    ForEachPack<N, 0>(of.cols, [&](int, int64_t at) {
      const Pack<T, N> pack = LoadPack<N>(x, at, of);
      C most = kNone;
      ForEachOf<N>(at, of, [&](int j) {
        const C value = Widen(pack.v[j]);
        most = value > most ? value : most;
      });
      seen.Raise(most);
      const C base = seen.base();
      ForEachOf<N>(at, of, [&](int j) { seen.sum += math::Exp(Widen(pack.v[j]) - base); });
      if (args.rows.logit_sum == nullptr) return;
      ForEachOf<N>(at, of, [&](int j) { total += static_cast<double>(Widen(pack.v[j])); });
    });
    seen.Raise(RowReduce(seen.most, kNone, Most{}));
    const C sum = RowSum(seen.sum);
    if (args.rows.logit_sum != nullptr) total = RowSum(total);
    if (threadIdx.x != 0) continue;
    const double lse = static_cast<double>(seen.most) + log(static_cast<double>(sum));
    const int64_t target = args.rows.targets[r] - args.first;
    if (args.rows.targets[r] >= 0 && target >= 0 && target < of.cols) {
      args.rows.target_logit[r] = static_cast<double>(Widen(x[target]));
    }
    args.rows.lse[r] = args.first == 0 ? lse : LogAddExp(args.rows.lse[r], lse);
    if (args.rows.logit_sum == nullptr) continue;
    args.rows.logit_sum[r] = args.first == 0 ? total : args.rows.logit_sum[r] + total;
  }
}

struct LossSum {
  double loss, count;
};

struct FinishArgs {
  RowsSoFar rows;
  int64_t count;
  double smoothing, z_loss, classes;
};

// Writes lse and the sums of kPartRows rows a block.
template <typename C>
__global__ void __launch_bounds__(kThreads) FinishRows(FinishArgs args, C* lse, LossSum* parts) {
  const int64_t begin = blockIdx.x * kPartRows;
  const int64_t end = begin + kPartRows < args.count ? begin + kPartRows : args.count;
  LossSum sum = {0.0, 0.0};
  for (int64_t r = begin + threadIdx.x; r < end; r += kThreads) {
    const double of_row = args.rows.lse[r];
    lse[r] = static_cast<C>(of_row);
    if (args.rows.targets[r] < 0) continue;
    double loss = of_row - args.rows.target_logit[r];
    if (args.smoothing != 0.0) {
      const double mean = args.rows.logit_sum[r] / args.classes;
      loss = (1.0 - args.smoothing) * loss + args.smoothing * (of_row - mean);
    }
    if (args.z_loss != 0.0) loss += args.z_loss * of_row * of_row;
    sum.loss += loss;
    sum.count += 1.0;
  }
  sum.loss = BlockSum(sum.loss);
  sum.count = BlockSum(sum.count);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block.
__global__ void __launch_bounds__(kThreads)
    AddLosses(const LossSum* parts, int64_t count, LossSum* total) {
  LossSum sum = {0.0, 0.0};
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum.loss += parts[i].loss;
    sum.count += parts[i].count;
  }
  sum.loss = BlockSum(sum.loss);
  sum.count = BlockSum(sum.count);
  if (threadIdx.x == 0) *total = sum;
}

// grad (+)= scale (slope softmax - on_all), and less on_target at the target.
template <typename T>
struct BackwardArgs {
  RowShape of;
  RowsAt<const T> logits;
  RowsAt<T> grad;
  const int64_t* targets;
  const Compute<T>* lse;
  int64_t first;
  int64_t tiles;  // of a row
  Compute<T> scale, z_slope, on_target, on_all;
  bool add;
};

// A block takes a tile of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) GradTiles(BackwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  constexpr int64_t kTile = int64_t{kThreads} * kTilePacks * N;
  RowShape of = args.of;
  for (int64_t item = blockIdx.x; item < of.rows * args.tiles; item += gridDim.x) {
    const int64_t r = item / args.tiles, begin = item % args.tiles * kTile;
    const T* const x = args.logits.row(r) + begin;
    T* const grad = args.grad.row(r) + begin;
    of.cols = args.of.cols - begin < kTile ? args.of.cols - begin : kTile;
    const bool counts = args.targets[r] >= 0;
    if (!counts && args.add) continue;
    const C lse = args.lse[r], slope = C(1) + args.z_slope * lse;
    const int64_t target = args.targets[r] - args.first - begin;
    ForEachPack<N, kTilePacks>(of.cols, [&](int, int64_t at) {
      C values[N] = {};
      if (counts) {
        const Pack<T, N> pack = LoadPack<N>(x, at, of);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const C less = at + j == target ? args.on_target : C(0);
          const C share = slope * math::Exp(Widen(pack.v[j]) - lse) - args.on_all;
          values[j] = args.scale * (share - less);
        }
      }
      StorePack<N>(grad, at, of, values, args.add);
    });
  }
}

Tensor MakeRows(const Device& device, DType dtype, int64_t rows) {
  return Tensor::Empty(device, dtype, {rows}, MemoryCategory::kWorkspace);
}

void CheckLse(const Tensor& lse, DType dtype, int64_t rows) {
  SHERD_CHECK(lse.dtype() == kernels::internal::ComputeDType(dtype) && lse.is_contiguous() &&
                  lse.numel() == rows,
              "lse does not fit the logits of a cross-entropy");
}

// Keeps the same numbers for each row as on the CPU, in memory of the device.
class Pieces final : public kernels::CrossEntropyPiecesBackend {
 public:
  Pieces(const Tensor& targets, int64_t classes, const CrossEntropyOptions& options)
      : options_(options),
        classes_(classes),
        targets_(MakeRows(targets.device(), DType::kI64, targets.numel())) {
    const Device& device = targets.device();
    const Tensor packed = kernels::Pack(targets);
    const IndexCheck check = {BackendOf(device).fault(), FaultOp::kCrossEntropy, classes};
    WithIndex(packed.dtype(), [&]<typename I>(I) {
      if (rows() == 0) return;
      Launch(device, {.grid = GridFor(device, rows(), kThreads), .block = kThreads},
             &ReadTargets<I>, static_cast<const I*>(packed.raw()), rows(), options.ignore_index,
             check, targets_.data<int64_t>());
    });
  }

  void Add(const Tensor& logits, int64_t first) override {
    SHERD_CHECK(logits.rank() >= 1 && first + logits.shape().back() <= classes_,
                "logits do not fit the classes of a cross-entropy");
    if (logits.numel() == 0) return;
    const Device& device = logits.device();
    const Tensor packed = kernels::PackRows(logits);
    const RowView from = kernels::internal::RowsOf(packed);
    SHERD_CHECK(from.rows == rows(), "targets do not fit the logits of a cross-entropy");
    if (first == 0) {
      lse_ = MakeRows(device, DType::kF64, rows());
      target_logit_ = MakeRows(device, DType::kF64, rows());
      device.Zero(target_logit_.raw(), target_logit_.bytes());
      if (options_.label_smoothing != 0.0) logit_sum_ = MakeRows(device, DType::kF64, rows());
    }
    WithFloat(logits.dtype(), [&]<typename T>(T) {
      const RowShape of = {from.rows, from.cols, IsAligned(from, kPackOf<T>)};
      Launch(device, RowLaunch(of.rows, RowThreads(of.cols, kPackOf<T>, 4)), &Forward<T>,
             ForwardArgs<T>{of, RowsAt<const T>(from), so_far(), first});
    });
  }

  CrossEntropyResult Finish(const Tensor& lse) const override {
    if (!lse_.defined()) return {};
    SHERD_CHECK(lse.is_contiguous() && lse.numel() == rows(),
                "lse does not fit the rows of a cross-entropy");
    const Device& device = lse.device();
    const int64_t count = (rows() + kPartRows - 1) / kPartRows;
    const Tensor memory = MakeRows(device, DType::kF64, 2 * (count + 1));
    auto* const parts = static_cast<LossSum*>(memory.raw());
    const FinishArgs args = {so_far(), rows(), options_.label_smoothing, options_.z_loss,
                             static_cast<double>(classes_)};
    const LaunchShape shape = {.grid = static_cast<unsigned>(count), .block = kThreads};
    if (lse.dtype() == DType::kF64) {
      Launch(device, shape, &FinishRows<double>, args, lse.data<double>(), parts);
    } else {
      Launch(device, shape, &FinishRows<float>, args, lse.data<float>(), parts);
    }
    Launch(device, {.grid = 1, .block = kThreads}, &AddLosses, parts, count, parts + count);
    LossSum total = {};
    device.CopyToHost(&total, parts + count, sizeof(total));
    return {total.loss, static_cast<int64_t>(total.count)};
  }

  void Backward(const Tensor& logits, int64_t first, const Tensor& lse, double scale,
                const Tensor& grad, kernels::Write write) const override {
    CheckLse(lse, logits.dtype(), rows());
    SHERD_CHECK(grad.dtype() == logits.dtype() && grad.shape() == logits.shape() &&
                    first + logits.shape().back() <= classes_,
                "the gradient of a cross-entropy does not fit its logits");
    if (logits.numel() == 0) return;
    const Tensor packed = kernels::PackRows(logits);
    const RowView from = kernels::internal::RowsOf(packed), to = kernels::internal::RowsOf(grad);
    SHERD_CHECK(from.rows == rows(), "targets do not fit the logits of a cross-entropy");
    WithFloat(logits.dtype(), [&]<typename T>(T) {
      using C = Compute<T>;
      constexpr int N = kPackOf<T>;
      constexpr int64_t kTile = int64_t{kThreads} * kTilePacks * N;
      BackwardArgs<T> args = {};
      args.of = {from.rows, from.cols, IsAligned(from, N) && IsAligned(to, N)};
      args.logits = RowsAt<const T>(from);
      args.grad = RowsAt<T>(to);
      args.targets = targets_.data<int64_t>();
      args.lse = static_cast<const C*>(lse.raw());
      args.first = first;
      args.tiles = (from.cols + kTile - 1) / kTile;
      args.scale = static_cast<C>(scale);
      args.z_slope = static_cast<C>(2.0 * options_.z_loss);
      args.on_target = static_cast<C>(1.0 - options_.label_smoothing);
      args.on_all = static_cast<C>(options_.label_smoothing / static_cast<double>(classes_));
      args.add = write == kernels::Write::kAdd;
      const int64_t items = std::min<int64_t>(from.rows * args.tiles, int64_t{1} << 30);
      const int64_t threads = (from.cols + int64_t{N} * kTilePacks - 1) / (N * kTilePacks);
      Launch(
          logits.device(),
          {.grid = static_cast<unsigned>(items),
           .block = static_cast<unsigned>(
               args.tiles > 1 ? kThreads : std::min<int64_t>((threads + 31) / 32 * 32, kThreads))},
          &GradTiles<T>, args);
    });
  }

 private:
  int64_t rows() const { return targets_.numel(); }
  RowsSoFar so_far() const {
    return {targets_.data<int64_t>(), lse_.data<double>(), target_logit_.data<double>(),
            logit_sum_.defined() ? logit_sum_.data<double>() : nullptr};
  }

  const CrossEntropyOptions options_;
  const int64_t classes_;
  const Tensor targets_;
  Tensor lse_, target_logit_, logit_sum_;  // undefined until classes were added
};

}  // namespace

CrossEntropyResult Kernels::CrossEntropy(const Tensor& logits, const Tensor& targets,
                                         const CrossEntropyOptions& options,
                                         const Tensor& lse) const {
  SHERD_CHECK(logits.rank() >= 1, "logits are a scalar");
  CheckLse(lse, logits.dtype(), targets.numel());
  Pieces pieces(targets, logits.shape().back(), options);
  pieces.Add(logits, 0);
  return pieces.Finish(lse);
}

void Kernels::CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                                   const CrossEntropyOptions& options, const Tensor& lse,
                                   double scale, const Tensor& grad_logits,
                                   kernels::Write write) const {
  SHERD_CHECK(logits.rank() >= 1, "logits are a scalar");
  Pieces(targets, logits.shape().back(), options)
      .Backward(logits, 0, lse, scale, grad_logits, write);
}

std::unique_ptr<kernels::CrossEntropyPiecesBackend> Kernels::MakeCrossEntropyPieces(
    const Tensor& targets, int64_t classes, const CrossEntropyOptions& options) const {
  return std::make_unique<Pieces>(targets, classes, options);
}

}  // namespace sherd::cuda
