#include "sherd/runtime/kernels/rms_norm.h"

#include <cmath>

#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/norm.h"

namespace sherd::cuda {
namespace {

using kernels::internal::RowView;

constexpr int kHeld = 4;

template <typename T>
struct ForwardArgs {
  RowShape of;
  RowsAt<const T> x;
  const T* weight;
  RowsAt<T> out;
  Compute<T>* inv_rms;
  double eps;
};

template <typename T, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads) Forward(ForwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  for (int64_t r = FirstRow(); r < of.rows; r += RowStep()) {
    const RowReader<T, kPacks> x(args.x.row(r), of);
    C sum = 0;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      ForEachOf<N>(at, of, [&](int j) { sum += Widen(pack.v[j]) * Widen(pack.v[j]); });
    });
    const C mean = RowSum(sum) / static_cast<C>(of.cols);
    const C inv = static_cast<C>(1.0 / sqrt(static_cast<double>(mean) + args.eps));
    if (threadIdx.x == 0) args.inv_rms[r] = inv;
    T* const out = args.out.row(r);
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at), weight = LoadPack<N>(args.weight, at, of);
      C values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] = Widen(pack.v[j]) * inv * Widen(weight.v[j]);
      StorePack<N>(out, at, of, values, false);
    });
  }
}

void CheckOperands(const Tensor& x, const Tensor& weight, const Tensor& inv_rms) {
  SHERD_CHECK(weight.dtype() == x.dtype() && weight.numel() == x.shape().back(),
              "the weight of a norm does not fit its input");
  SHERD_CHECK(inv_rms.dtype() == kernels::internal::ComputeDType(x.dtype()) &&
                  inv_rms.is_contiguous() && inv_rms.numel() == x.shape().rows(),
              "inv_rms does not fit the input of its norm");
}

}  // namespace

void Kernels::RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out,
                      const Tensor& inv_rms) const {
  CheckOperands(x, weight, inv_rms);
  SHERD_CHECK(out.dtype() == x.dtype() && out.shape() == x.shape(),
              "the output of a norm does not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed = kernels::PackRows(x), w = kernels::Pack(weight);
  const RowView from = kernels::internal::RowsOf(packed), to = kernels::internal::RowsOf(out);
  WithFloat(x.dtype(), [&]<typename T>(T) {
    constexpr int N = kPackOf<T>;
    const RowShape of = {from.rows, from.cols,
                         IsAligned(from, N) && IsAligned(to, N) && IsAligned(w.raw())};
    LaunchRows<kHeld, T>(
        out.device(), &Forward<T, kHeld>, &Forward<T, 0>, of,
        ForwardArgs<T>{of, RowsAt<const T>(from), static_cast<const T*>(w.raw()), RowsAt<T>(to),
                       static_cast<Compute<T>*>(inv_rms.raw()), eps});
  });
}

void Kernels::RmsNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                              const Tensor& inv_rms, const Tensor& grad_x, kernels::Write write_x,
                              const Tensor& grad_weight, kernels::Write write_weight) const {
  CheckOperands(x, weight, inv_rms);
  SHERD_CHECK(
      grad.dtype() == x.dtype() && grad.shape() == x.shape() &&
          (!grad_x.defined() || (grad_x.dtype() == x.dtype() && grad_x.shape() == x.shape())),
      "the gradients of a norm do not fit its input");
  if (x.numel() == 0) {
    if (grad_weight.defined() && write_weight == kernels::Write::kOverwrite) {
      kernels::Fill(grad_weight, 0.0);
    }
    return;
  }
  NormBackward<false>(
      grad, x, weight, {}, inv_rms,
      {.x = grad_x, .write_x = write_x, .weight = grad_weight, .write_weight = write_weight});
}

}  // namespace sherd::cuda
