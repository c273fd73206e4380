#pragma once

#include <algorithm>

#include "sherd/runtime/cuda/internal/rows.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/layer_norm.h"
#include "sherd/runtime/kernels/pack.h"

// The backward that both norms of rows share, an RMS norm being a layer norm with a mean of 0. For
// .cu files.
//
// Gradients of weight and bias are sums over rows in two steps: over blocks of rows into partial
// sums, then over those. Where a row is a block's, the kernel that computes grad_x makes the
// partial sums from what it holds in registers, which reads each operand once; else one of its own
// does. Blocks, and which of the two it is, follow from the shape alone.
namespace sherd::cuda {

inline constexpr int kNormPacks = 2;
inline constexpr int kPartialThreads = 256;

template <typename T>
struct NormBackwardArgs {
  using C = Compute<T>;
  RowShape of;
  RowsAt<const T> grad, x;
  const T* weight = nullptr;  // null: 1
  const C* mean = nullptr;    // null: 0
  const C* inv = nullptr;
  RowsAt<T> grad_x;  // null data: not wanted
  bool add = false;
  int64_t block = 0;  // rows of a partial sum; 0: no partial sums
  C* to_weight = nullptr;
  C* to_bias = nullptr;
};

// What a thread adds up over its rows, for its elements of them.
template <typename T, int kPacks>
struct ColumnSums {
  static constexpr int N = kPackOf<T>;
  Compute<T> weight[kPacks > 0 ? kPacks : 1][N] = {};
  Compute<T> bias[kPacks > 0 ? kPacks : 1][N] = {};
};

template <typename T, int kPacks, bool kCentered>
__device__ inline void NormGradRow(const NormBackwardArgs<T>& args, int64_t r,
                                   const RowReader<T, kPacks>& grad, const RowReader<T, kPacks>& x,
                                   Compute<T> mean, Compute<T> inv) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  // g = grad * weight, and x less its mean
  const auto terms = [&](int k, int64_t at, C(&g)[N], C(&away)[N]) {
    const Pack<T, N> pg = grad(k, at), px = x(k, at);
    Pack<T, N> w;
    if (args.weight != nullptr) w = LoadPack<N>(args.weight, at, of);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = args.weight == nullptr ? Widen(pg.v[j]) : Widen(pg.v[j]) * Widen(w.v[j]);
      away[j] = Widen(px.v[j]) - mean;
    }
  };
  C sum = 0, dot = 0;
  ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
    C g[N], away[N];
    terms(k, at, g, away);
    ForEachOf<N>(at, of, [&](int j) {
      sum += g[j];
      dot += g[j] * away[j];
    });
  });
  const C level = kCentered ? RowSum(sum) / static_cast<C>(of.cols) : C(0);
  const C along = RowSum(dot) * inv * inv / static_cast<C>(of.cols);
  T* const grad_x = args.grad_x.row(r);
  ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
    C g[N], away[N];
    terms(k, at, g, away);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = inv * (g[j] - level - away[j] * along);
    StorePack<N>(grad_x, at, of, g, args.add);
  });
}

// A block with partial sums takes args.block adjacent rows, one after another.
template <typename T, int kPacks, bool kCentered>
__global__ void __launch_bounds__(kMostRowThreads) NormBackwardKernel(NormBackwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  const bool partial = args.block > 0;
  const int64_t begin = partial ? blockIdx.x * args.block : FirstRow();
  const int64_t end = partial ? begin + args.block : of.rows;
  const int64_t step = partial ? 1 : RowStep();
  ColumnSums<T, kPacks> sums;
  for (int64_t r = begin; r < end && r < of.rows; r += step) {
    const RowReader<T, kPacks> grad(args.grad.row(r), of), x(args.x.row(r), of);
    const C mean = args.mean == nullptr ? C(0) : args.mean[r], inv = args.inv[r];
    if constexpr (kPacks > 0) {
      if (partial) {
        ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
          const Pack<T, N> pg = grad(k, at), px = x(k, at);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            sums.weight[k][j] += Widen(pg.v[j]) * ((Widen(px.v[j]) - mean) * inv);
            sums.bias[k][j] += Widen(pg.v[j]);
          }
        });
      }
    }
    if (args.grad_x.data != nullptr) {
      NormGradRow<T, kPacks, kCentered>(args, r, grad, x, mean, inv);
    }
  }
  if constexpr (kPacks > 0) {
    if (!partial) return;
    ForEachPack<N, kPacks>(of.cols, [&](int k, int64_t at) {
      ForEachOf<N>(at, of, [&](int j) {
        const int64_t to = blockIdx.x * of.cols + at + j;
        if (args.to_weight != nullptr) args.to_weight[to] = sums.weight[k][j];
        if (args.to_bias != nullptr) args.to_bias[to] = sums.bias[k][j];
      });
    });
  }
}

// Partial sums of args.block rows for blockDim.x packs of columns, blockDim.y rows at a time.
template <typename T>
__global__ void __launch_bounds__(kPartialThreads) NormPartials(NormBackwardArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  __shared__ C of_weight[kPartialThreads][N], of_bias[kPartialThreads][N];
  const RowShape of = args.of;
  const int64_t at = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  const int64_t begin = blockIdx.x * args.block, end = begin + args.block;
  C to_weight[N] = {}, to_bias[N] = {};
  for (int64_t r = begin + threadIdx.y; r < end && r < of.rows && at < of.cols; r += blockDim.y) {
    const Pack<T, N> grad = LoadPack<N>(args.grad.row(r), at, of);
    const Pack<T, N> x = LoadPack<N>(args.x.row(r), at, of);
    const C mean = args.mean == nullptr ? C(0) : args.mean[r], inv = args.inv[r];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      to_weight[j] += Widen(grad.v[j]) * ((Widen(x.v[j]) - mean) * inv);
      to_bias[j] += Widen(grad.v[j]);
    }
  }
  const unsigned self = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    of_weight[self][j] = to_weight[j];
    of_bias[self][j] = to_bias[j];
  }
  __syncthreads();
  if (threadIdx.y != 0 || at >= of.cols) return;
  for (unsigned y = 1; y < blockDim.y; ++y) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      to_weight[j] += of_weight[y * blockDim.x + threadIdx.x][j];
      to_bias[j] += of_bias[y * blockDim.x + threadIdx.x][j];
    }
  }
  ForEachOf<N>(at, of, [&](int j) {
    const int64_t to = blockIdx.x * of.cols + at + j;
    if (args.to_weight != nullptr) args.to_weight[to] = to_weight[j];
    if (args.to_bias != nullptr) args.to_bias[to] = to_bias[j];
  });
}

// total[c] = sum of partials[.., c]; blocks of 32 columns x 8.
template <typename C>
__global__ void AddPartials(const C* partials, int64_t count, int64_t cols, C* total) {
  __shared__ C sums[8][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  C sum = 0;
  for (int64_t b = threadIdx.y; b < count && c < cols; b += 8) sum += partials[b * cols + c];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  for (int y = 1; y < 8; ++y) sum += sums[y][threadIdx.x];
  total[c] = sum;
}

// gradient (+)= the sum of partials [count, cols]. Nothing for an undefined gradient.
template <typename C>
void AddUpPartials(const Tensor& partials, const Tensor& gradient, kernels::Write write) {
  if (!gradient.defined()) return;
  const int64_t cols = partials.dim(1);
  const Tensor total = Tensor::Empty(partials.device(), partials.dtype(), gradient.shape(),
                                     MemoryCategory::kWorkspace);
  Launch(partials.device(), {.grid = static_cast<unsigned>((cols + 31) / 32), .block = dim3(32, 8)},
         &AddPartials<C>, static_cast<const C*>(partials.raw()), partials.dim(0), cols,
         static_cast<C*>(total.raw()));
  kernels::Cast(total, gradient, write);
}

// Launches what computes the gradients; `sums` says that partial sums are wanted, of `blocks`.
template <typename T, bool kCentered>
void LaunchNormBackward(const Device& device, NormBackwardArgs<T> args, bool fused,
                        int64_t blocks) {
  constexpr int N = kPackOf<T>;
  if (fused) {
    Launch(device,
           {.grid = static_cast<unsigned>(blocks),
            .block = static_cast<unsigned>(RowThreads(args.of.cols, N, kNormPacks))},
           &NormBackwardKernel<T, kNormPacks, kCentered>, args);
    return;
  }
  // Sums first: grad_x may be written over grad.
  if (args.block > 0) {
    const int64_t packs = (args.of.cols + N - 1) / N;
    unsigned across = 1;
    while (across < 32 && across < packs) across *= 2;
    const auto tiles = static_cast<unsigned>((packs + across - 1) / across);
    Launch(device,
           {.grid = dim3(static_cast<unsigned>(blocks), tiles),
            .block = dim3(across, kPartialThreads / across)},
           &NormPartials<T>, args);
    args.block = 0;
  }
  if (args.grad_x.data == nullptr) return;
  LaunchRows<kNormPacks, T>(device, &NormBackwardKernel<T, kNormPacks, kCentered>,
                            &NormBackwardKernel<T, 0, kCentered>, args.of, args);
}

// As LayerNormBackward of kernels/layer_norm.h for operands that were checked, x with elements. An
// undefined mean is 0, and then grad_x has no term for it.
template <bool kCentered>
void NormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean,
                  const Tensor& inv, const kernels::LayerNormGradients& to) {
  using kernels::internal::RowView;
  const Tensor packed_grad = kernels::PackRows(grad), packed_x = kernels::PackRows(x);
  const Tensor w = weight.defined() ? kernels::Pack(weight) : Tensor();
  const RowView from = kernels::internal::RowsOf(packed_grad);
  const RowView at = kernels::internal::RowsOf(packed_x);
  const RowView to_x = to.x.defined() ? kernels::internal::RowsOf(to.x) : RowView{};
  const bool sums = to.weight.defined() || to.bias.defined();
  WithFloat(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    constexpr int N = kPackOf<T>;
    NormBackwardArgs<T> args;
    args.of = {from.rows, from.cols,
               IsAligned(from, N) && IsAligned(at, N) && IsAligned(to_x, N) &&
                   (!w.defined() || IsAligned(w.raw()))};
    args.grad = RowsAt<const T>(from);
    args.x = RowsAt<const T>(at);
    args.weight = w.defined() ? static_cast<const T*>(w.raw()) : nullptr;
    args.mean = mean.defined() ? static_cast<const C*>(mean.raw()) : nullptr;
    args.inv = static_cast<const C*>(inv.raw());
    args.grad_x = RowsAt<T>(to_x);
    args.add = to.write_x == kernels::Write::kAdd;
    const int threads = RowThreads(from.cols, N, kNormPacks);
    const bool fused = sums && threads > 32 && int64_t{threads} * N * kNormPacks >= from.cols;
    if (sums) args.block = std::max<int64_t>(fused ? 8 : 64, (from.rows + 511) / 512);
    const int64_t blocks = sums ? (from.rows + args.block - 1) / args.block : 0;
    const auto partials = [&](const Tensor& gradient) {
      if (!gradient.defined()) return Tensor();
      return Tensor::Empty(x.device(), inv.dtype(), {blocks, from.cols},
                           MemoryCategory::kWorkspace);
    };
    const Tensor of_weight = partials(to.weight), of_bias = partials(to.bias);
    if (of_weight.defined()) args.to_weight = static_cast<C*>(of_weight.raw());
    if (of_bias.defined()) args.to_bias = static_cast<C*>(of_bias.raw());
    LaunchNormBackward<T, kCentered>(x.device(), args, fused, blocks);
    AddUpPartials<C>(of_weight, to.weight, to.write_weight);
    AddUpPartials<C>(of_bias, to.bias, to.write_bias);
  });
}

}  // namespace sherd::cuda
