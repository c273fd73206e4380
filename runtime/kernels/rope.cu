#include "sherd/runtime/kernels/rope.h"

#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/rows.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct RopeArgs {
  const T* x;
  T* out;
  int64_t x_stride[3], out_stride[3];  // of batch, token, head
  const Compute<T>* cos;               // the first token's row
  const Compute<T>* sin;
  int64_t tokens, heads, packs;  // packs of a half
  int64_t items;                 // batch * tokens * heads * packs
  RowShape half;                 // cols: D/2
  Compute<T> sign;
  bool add;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) RotateKernel(RopeArgs<T> args) {
  using C = Compute<T>;
  constexpr int N = kPackOf<T>;
  const RowShape half = args.half;
  for (int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x; item < args.items;
       item += int64_t{gridDim.x} * kThreads) {
    const int64_t head = item / args.packs, token = head / args.heads;
    const int64_t at = item % args.packs * N, h = head % args.heads;
    const int64_t b = token / args.tokens, t = token % args.tokens;
    const T* const x = args.x + b * args.x_stride[0] + t * args.x_stride[1] + h * args.x_stride[2];
    T* const out =
        args.out + b * args.out_stride[0] + t * args.out_stride[1] + h * args.out_stride[2];
    const Pack<T, N> first = LoadPack<N>(x, at, half);
    const Pack<T, N> second = LoadPack<N>(x + half.cols, at, half);
    const Pack<C, N> cos = LoadPack<N>(args.cos + t * half.cols, at, half);
    const Pack<C, N> sin = LoadPack<N>(args.sin + t * half.cols, at, half);
    C to_first[N], to_second[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C p = Widen(first.v[j]), q = Widen(second.v[j]), s = args.sign * sin.v[j];
      to_first[j] = p * cos.v[j] - q * s;
      to_second[j] = q * cos.v[j] + p * s;
    }
    StorePack<N>(out, at, half, to_first, args.add);
    StorePack<N>(out + half.cols, at, half, to_second, args.add);
  }
}

void CheckOperands(const Tensor& x, const kernels::RopeTables& tables, int64_t first_position,
                   const Tensor& out) {
  SHERD_CHECK(x.rank() == 4 && x.shape() == out.shape() && x.dtype() == out.dtype(),
              "rope takes and gives [B, T, H, D] of one dtype");
  const DType table = kernels::internal::ComputeDType(x.dtype());
  SHERD_CHECK(tables.cos.dtype() == table && tables.sin.dtype() == table &&
                  tables.cos.shape() == tables.sin.shape() && tables.cos.rank() == 2 &&
                  tables.cos.is_contiguous() && tables.sin.is_contiguous() &&
                  2 * tables.cos.dim(1) == x.dim(3) && first_position >= 0 &&
                  first_position + x.dim(1) <= tables.cos.dim(0),
              "rope tables do not fit the input");
}

// Whether the halves of all heads are whole packs at aligned addresses.
bool AreHalvesAligned(const Tensor& x, int64_t pack) {
  bool aligned = IsAligned(x.raw()) && x.dim(3) / 2 % pack == 0;
  for (int i = 0; i < 3; ++i) aligned = aligned && (x.dim(i) == 1 || x.strides()[i] % pack == 0);
  return aligned;
}

}  // namespace

void Kernels::Rope(const Tensor& x_in, const Tensor& cos, const Tensor& sin, int64_t first_position,
                   bool inverse, const Tensor& out, kernels::Write write) const {
  CheckOperands(x_in, {cos, sin}, first_position, out);
  if (x_in.numel() == 0) return;
  const Tensor x = kernels::PackInnermost(x_in);
  SHERD_CHECK(x.strides()[3] == 1 && out.strides()[3] == 1, "channels of a head are not adjacent");
  const int64_t half = x.dim(3) / 2;
  WithFloat(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    constexpr int N = kPackOf<T>;
    RopeArgs<T> args = {};
    args.x = static_cast<const T*>(x.raw());
    args.out = static_cast<T*>(out.raw());
    for (int i = 0; i < 3; ++i) {
      args.x_stride[i] = x.strides()[i];
      args.out_stride[i] = out.strides()[i];
    }
    args.cos = static_cast<const C*>(cos.raw()) + first_position * half;
    args.sin = static_cast<const C*>(sin.raw()) + first_position * half;
    args.tokens = x.dim(1);
    args.heads = x.dim(2);
    args.packs = (half + N - 1) / N;
    args.items = x.dim(0) * args.tokens * args.heads * args.packs;
    constexpr int64_t kTablePack = N * static_cast<int64_t>(sizeof(C));
    args.half = {0, half,
                 AreHalvesAligned(x, N) && AreHalvesAligned(out, N) &&
                     IsAligned(args.cos, kTablePack) && IsAligned(args.sin, kTablePack)};
    args.sign = inverse ? C(-1) : C(1);
    args.add = write == kernels::Write::kAdd;
    Launch(out.device(), {.grid = GridFor(out.device(), args.items, kThreads), .block = kThreads},
           &RotateKernel<T>, args);
  });
}

}  // namespace sherd::cuda
