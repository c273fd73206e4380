#include "sherd/runtime/kernels/l2_normalize.h"

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
  Compute<T>* norms;
  double eps;
};

template <typename T, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads) Forward(ForwardArgs<T> args) {
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  for (int64_t r = FirstRow(); r < of.rows; r += RowStep()) {
    const RowReader<T, kPacks> x(args.x.row(r), of);
    double squares = 0.0;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      ForEachOf<N>(at, of, [&](int j) {
        const double value = static_cast<double>(Widen(pack.v[j]));
        squares += value * value;
      });
    });
    const double norm = sqrt(RowSum(squares));
    const double scale = 1.0 / (norm < args.eps ? args.eps : norm);
    if (threadIdx.x == 0) args.norms[r] = static_cast<Compute<T>>(norm);
    T* const out = args.out.row(r);
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      double values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] = static_cast<double>(Widen(pack.v[j])) * scale;
      StorePack<N>(out, at, of, values, false);
    });
  }
}

template <typename T>
struct BackwardArgs {
  RowShape of;
  RowsAt<const T> grad, x;
  const Compute<T>* norms;
  double eps;
  RowsAt<T> grad_x;
  bool add;
};

template <typename T, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads) Backward(BackwardArgs<T> args) {
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  for (int64_t r = FirstRow(); r < of.rows; r += RowStep()) {
    const RowReader<T, kPacks> grad(args.grad.row(r), of), x(args.x.row(r), of);
    const double norm = static_cast<double>(args.norms[r]);
    const double scale = 1.0 / (norm < args.eps ? args.eps : norm);
    double dot = 0.0;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> g = grad(k, at), value = x(k, at);
      ForEachOf<N>(at, of, [&](int j) {
        dot += static_cast<double>(Widen(g.v[j])) * static_cast<double>(Widen(value.v[j])) * scale;
      });
    });
    dot = RowSum(dot);
    if (!(norm > args.eps)) dot = 0.0;
    T* const grad_x = args.grad_x.row(r);
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> g = grad(k, at), value = x(k, at);
      double values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const double y = static_cast<double>(Widen(value.v[j])) * scale;
        values[j] = (static_cast<double>(Widen(g.v[j])) - y * dot) * scale;
      }
      StorePack<N>(grad_x, at, of, values, args.add);
    });
  }
}

void CheckNorms(const Tensor& x, const Tensor& norms) {
  SHERD_CHECK(norms.dtype() == kernels::internal::ComputeDType(x.dtype()) &&
                  norms.is_contiguous() && norms.numel() == x.shape().rows(),
              "the norms do not fit their rows");
}

}  // namespace

void Kernels::L2Normalize(const Tensor& x, double eps, const Tensor& out,
                          const Tensor& norms) const {
  CheckNorms(x, norms);
  SHERD_CHECK(out.dtype() == x.dtype() && out.shape() == x.shape(),
              "the output of a normalisation does not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed = kernels::PackRows(x);
  const RowView from = kernels::internal::RowsOf(packed), to = kernels::internal::RowsOf(out);
  WithFloat(x.dtype(), [&]<typename T>(T) {
    constexpr int N = kPackOf<T>;
    const RowShape of = {from.rows, from.cols, IsAligned(from, N) && IsAligned(to, N)};
    LaunchRows<kHeld, T>(out.device(), &Forward<T, kHeld>, &Forward<T, 0>, of,
                         ForwardArgs<T>{of, RowsAt<const T>(from), RowsAt<T>(to),
                                        static_cast<Compute<T>*>(norms.raw()), eps});
  });
}

void Kernels::L2NormalizeBackward(const Tensor& grad, const Tensor& x, const Tensor& norms,
                                  double eps, const Tensor& grad_x, kernels::Write write) const {
  CheckNorms(x, norms);
  SHERD_CHECK(grad.dtype() == x.dtype() && grad.shape() == x.shape() &&
                  grad_x.dtype() == x.dtype() && grad_x.shape() == x.shape(),
              "the gradients of a normalisation do not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed_grad = kernels::PackRows(grad), packed_x = kernels::PackRows(x);
  const RowView from = kernels::internal::RowsOf(packed_grad);
  const RowView at = kernels::internal::RowsOf(packed_x);
  const RowView to = kernels::internal::RowsOf(grad_x);
  WithFloat(x.dtype(), [&]<typename T>(T) {
    constexpr int N = kPackOf<T>;
    const RowShape of = {from.rows, from.cols,
                         IsAligned(from, N) && IsAligned(at, N) && IsAligned(to, N)};
    LaunchRows<kHeld, T>(x.device(), &Backward<T, kHeld>, &Backward<T, 0>, of,
                         BackwardArgs<T>{of, RowsAt<const T>(from), RowsAt<const T>(at),
                                         static_cast<const Compute<T>*>(norms.raw()), eps,
                                         RowsAt<T>(to), write == kernels::Write::kAdd});
  });
}

}  // namespace sherd::cuda
