#include "sherd/runtime/kernels/layer_norm.h"

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
  const T* weight;  // null: 1
  const T* bias;    // null: 0
  RowsAt<T> out;
  Compute<T>* mean;
  Compute<T>* inv_std;
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
      ForEachOf<N>(at, of, [&](int j) { sum += Widen(pack.v[j]); });
    });
    const C mean = RowSum(sum) / static_cast<C>(of.cols);
    C squares = 0;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      ForEachOf<N>(at, of, [&](int j) {
        const C away = Widen(pack.v[j]) - mean;
        squares += away * away;
      });
    });
    const C variance = RowSum(squares) / static_cast<C>(of.cols);
    const C inv = static_cast<C>(1.0 / sqrt(static_cast<double>(variance) + args.eps));
    if (threadIdx.x == 0) {
      args.mean[r] = mean;
      args.inv_std[r] = inv;
    }
    T* const out = args.out.row(r);
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      const Pack<T, N> pack = x(k, at);
      Pack<T, N> weight, bias;
      if (args.weight != nullptr) weight = LoadPack<N>(args.weight, at, of);
      if (args.bias != nullptr) bias = LoadPack<N>(args.bias, at, of);
      C values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        values[j] = (Widen(pack.v[j]) - mean) * inv;
        if (args.weight != nullptr) values[j] *= Widen(weight.v[j]);
        if (args.bias != nullptr) values[j] += Widen(bias.v[j]);
      }
      StorePack<N>(out, at, of, values, false);
    });
  }
}

void CheckStatistics(const Tensor& x, const Tensor& statistics) {
  SHERD_CHECK(statistics.dtype() == kernels::internal::ComputeDType(x.dtype()) &&
                  statistics.is_contiguous() && statistics.numel() == x.shape().rows(),
              "the statistics of a layer norm do not fit its input");
}

void CheckLike(const Tensor& a, const Tensor& x) {
  SHERD_CHECK(a.dtype() == x.dtype() && a.shape() == x.shape(),
              "operands of a layer norm do not fit its input");
}

// A weight or bias with its elements adjacent; undefined if it is not given.
Tensor Columns(const Tensor& given, const Tensor& x) {
  if (!given.defined()) return {};
  SHERD_CHECK(given.dtype() == x.dtype() && given.numel() == x.shape().back(),
              "the weight or bias of a layer norm does not fit its input");
  return kernels::Pack(given);
}

template <typename T>
const T* AddressOr(const Tensor& given) {
  return given.defined() ? static_cast<const T*>(given.raw()) : nullptr;
}

}  // namespace

void Kernels::LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        const Tensor& out, const Tensor& mean, const Tensor& inv_std) const {
  CheckLike(out, x);
  CheckStatistics(x, mean);
  CheckStatistics(x, inv_std);
  if (x.numel() == 0) return;
  const Tensor packed = kernels::PackRows(x), w = Columns(weight, x), b = Columns(bias, x);
  const RowView from = kernels::internal::RowsOf(packed), to = kernels::internal::RowsOf(out);
  WithFloat(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    constexpr int N = kPackOf<T>;
    const T* const weights = AddressOr<T>(w);
    const T* const biases = AddressOr<T>(b);
    const RowShape of = {
        from.rows, from.cols,
        IsAligned(from, N) && IsAligned(to, N) && IsAligned(weights) && IsAligned(biases)};
    LaunchRows<kHeld, T>(
        out.device(), &Forward<T, kHeld>, &Forward<T, 0>, of,
        ForwardArgs<T>{of, RowsAt<const T>(from), weights, biases, RowsAt<T>(to),
                       static_cast<C*>(mean.raw()), static_cast<C*>(inv_std.raw()), eps});
  });
}

void Kernels::LayerNormBackward(const Tensor& grad, const Tensor& x_or_none, const Tensor& weight,
                                const Tensor& mean, const Tensor& inv_std,
                                const kernels::LayerNormGradients& to) const {
  // Stands in for an x that nothing reads.
  const Tensor& x = x_or_none.defined() ? x_or_none : grad;
  SHERD_CHECK(x_or_none.defined() || !(to.x.defined() || to.weight.defined()),
              "a gradient of a layer norm needs its input");
  CheckLike(grad, x);
  CheckStatistics(x, mean);
  CheckStatistics(x, inv_std);
  if (to.x.defined()) CheckLike(to.x, x);
  if (x.numel() == 0) {
    const auto zero = [](const Tensor& gradient, kernels::Write write) {
      if (gradient.defined() && write == kernels::Write::kOverwrite) kernels::Fill(gradient, 0.0);
    };
    zero(to.weight, to.write_weight);
    zero(to.bias, to.write_bias);
    return;
  }
  NormBackward<true>(grad, x, weight, mean, inv_std, to);
}

}  // namespace sherd::cuda
