#include "sherd/runtime/kernels/softmax.h"

#include <cmath>

#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/rows.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

using kernels::internal::RowView;

constexpr int kHeld = 4;

template <typename T>
struct ForwardArgs {
  RowShape of;
  RowsAt<const T> x;
  RowsAt<T> out;
};

template <typename T, int kPacks, bool kLog>
__global__ void __launch_bounds__(kMostRowThreads) Forward(ForwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  for (int64_t r = FirstRow(); r < of.rows; r += RowStep()) {
    const RowReader<T, kPacks> x(args.x.row(r), of);
    C most = -C(__builtin_inff());
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      ForEachOf<N>(at, of, [&](int j) {
        const C value = Widen(pack.v[j]);
        most = value > most ? value : most;  // passes over NaN, which comes back below
      });
    });
    most = RowReduce(most, -C(__builtin_inff()), Most{});
    C sum = 0;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      ForEachOf<N>(at, of, [&](int j) { sum += math::Exp(Widen(pack.v[j]) - most); });
    });
    sum = RowSum(sum);
    const C scale = C(1) / sum, log_sum = static_cast<C>(log(static_cast<double>(sum)));
    T* const out = args.out.row(r);
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      C values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const C above = Widen(pack.v[j]) - most;
        values[j] = kLog ? above - log_sum : scale * math::Exp(above);
      }
      StorePack<N>(out, at, of, values, false);
    });
  }
}

template <typename T>
struct BackwardArgs {
  RowShape of;
  RowsAt<const T> grad, y;
  RowsAt<T> grad_x;
  bool add;
};

template <typename T, int kPacks, bool kLog>
__global__ void __launch_bounds__(kMostRowThreads) Backward(BackwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  for (int64_t r = FirstRow(); r < of.rows; r += RowStep()) {
    const RowReader<T, kPacks> grad(args.grad.row(r), of), y(args.y.row(r), of);
    C sum = 0;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> g = grad(k, at), value = y(k, at);
      ForEachOf<N>(at, of,
                   [&](int j) { sum += kLog ? Widen(g.v[j]) : Widen(g.v[j]) * Widen(value.v[j]); });
    });
    sum = RowSum(sum);
    T* const grad_x = args.grad_x.row(r);
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> g = grad(k, at), value = y(k, at);
      C values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const C gj = Widen(g.v[j]), yj = Widen(value.v[j]);
        values[j] = kLog ? gj - math::Exp(yj) * sum : yj * (gj - sum);
      }
      StorePack<N>(grad_x, at, of, values, args.add);
    });
  }
}

void CheckLike(const Tensor& a, const Tensor& b) {
  SHERD_CHECK(a.dtype() == b.dtype() && a.shape() == b.shape() && a.rank() >= 1,
              "operands of a softmax do not fit each other");
}

template <bool kLog>
void RunForward(const Tensor& x, const Tensor& out) {
  CheckLike(x, out);
  if (x.numel() == 0) return;
  const Tensor packed = kernels::PackRows(x);
  const RowView from = kernels::internal::RowsOf(packed), to = kernels::internal::RowsOf(out);
  WithFloat(x.dtype(), [&]<typename T>(T) {
    const RowShape of = {from.rows, from.cols,
                         IsAligned(from, kPackOf<T>) && IsAligned(to, kPackOf<T>)};
    LaunchRows<kHeld, T>(out.device(), &Forward<T, kHeld, kLog>, &Forward<T, 0, kLog>, of,
                         ForwardArgs<T>{of, RowsAt<const T>(from), RowsAt<T>(to)});
  });
}

template <bool kLog>
void RunBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x, kernels::Write write) {
  CheckLike(grad, y);
  CheckLike(grad, grad_x);
  if (grad.numel() == 0) return;
  const Tensor packed_grad = kernels::PackRows(grad), packed_y = kernels::PackRows(y);
  const RowView from = kernels::internal::RowsOf(packed_grad);
  const RowView at = kernels::internal::RowsOf(packed_y);
  const RowView to = kernels::internal::RowsOf(grad_x);
  WithFloat(grad.dtype(), [&]<typename T>(T) {
    constexpr int N = kPackOf<T>;
    const RowShape of = {from.rows, from.cols,
                         IsAligned(from, N) && IsAligned(at, N) && IsAligned(to, N)};
    LaunchRows<kHeld, T>(grad.device(), &Backward<T, kHeld, kLog>, &Backward<T, 0, kLog>, of,
                         BackwardArgs<T>{of, RowsAt<const T>(from), RowsAt<const T>(at),
                                         RowsAt<T>(to), write == kernels::Write::kAdd});
  });
}

}  // namespace

void Kernels::Softmax(const Tensor& x, const Tensor& out) const { RunForward<false>(x, out); }

void Kernels::LogSoftmax(const Tensor& x, const Tensor& out) const { RunForward<true>(x, out); }

void Kernels::SoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                              kernels::Write write) const {
  RunBackward<false>(grad, y, grad_x, write);
}

void Kernels::LogSoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                                 kernels::Write write) const {
  RunBackward<true>(grad, y, grad_x, write);
}

}  // namespace sherd::cuda
