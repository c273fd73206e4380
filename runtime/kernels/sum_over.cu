#include "sherd/runtime/kernels/sum_over.h"

#include <algorithm>

#include "sherd/runtime/cuda/internal/map.h"
#include "sherd/runtime/cuda/internal/reduce.h"
#include "sherd/runtime/kernels/internal/sum_dims.h"
#include "sherd/runtime/kernels/pack.h"

// Partial sums of chunks of what is summed, which the shape alone decides, partial sums of those
// where they are many, and their sums. All in f64.
//
// Bytes moved: reads e for an element of e bytes, and writes and reads 8 for a partial sum, which
// are at most a 64th of the elements; writes the output.
namespace sherd::cuda {
namespace {

using kernels::internal::SumDims;

constexpr int kThreads = 256;
constexpr int kElems = 8;  // that a thread takes at once
constexpr int kTileColumns = 32 * kElems;
// Partial sums that fill a device, of blocks and of warps.
constexpr int64_t kBlocks = 1024;
constexpr int64_t kWarps = 8 * kBlocks;

struct SumArgs {
  const char* x;
  DType dtype;
  SumDims kept, summed;   // without the innermost one of the two
  int64_t columns;        // adjacent sums, or
  int64_t run;            // adjacent elements of one sum
  int64_t rows;           // indices of `summed`
  int64_t chunk, chunks;  // rows, or elements, of a partial sum
  int64_t kept_count;
  bool packed;       // kElems elements are aligned wherever they start at a multiple of it
  double* partials;  // [kept_count, chunks, columns]
};

// Elements [at, at + kElems) as doubles, 0 from `most` of them on.
__device__ inline void LoadGroup(const SumArgs& args, int64_t at, int64_t most,
                                 double (&v)[kElems]) {
  if (args.packed && most >= kElems) {
    const int bytes = ElemBytes(args.dtype);
    uint32_t words[2 * kElems] = {};
    LoadWords(args.x + at * bytes, kElems * bytes, words);
    return Decode(words, args.dtype, v);
  }
#pragma unroll
  for (int j = 0; j < kElems; ++j) {
    v[j] = j < most ? LoadAs<double>(args.x, args.dtype, at + j) : 0.0;
  }
}

// Partial sums of kElems x 32 columns over a chunk of rows: every eighth row for each of 8 warps,
// whose sums are then added in order. Blocks of 32 x 8 threads.
__global__ void ColumnsKernel(const SumArgs args) {
  __shared__ double sums[8][kTileColumns];
  const int64_t tiles = (args.columns + kTileColumns - 1) / kTileColumns;
  const int64_t items = args.kept_count * args.chunks * tiles;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t tile = item % tiles * kTileColumns, chunk = item / tiles % args.chunks;
    const int64_t kept = item / (tiles * args.chunks);
    const int64_t column = tile + x * kElems, most = args.columns - column;
    const int64_t from = args.kept.OffsetOf(kept) + column;
    const int64_t first = chunk * args.chunk, left = args.rows - first;
    const int64_t end = first + (left < args.chunk ? left : args.chunk);
    double sum[kElems] = {};
    for (int64_t r = first + y; r < end && most > 0; r += 8) {
      double v[kElems];
      LoadGroup(args, from + args.summed.OffsetOf(r), most, v);
#pragma unroll
      for (int j = 0; j < kElems; ++j) sum[j] += v[j];
    }
#pragma unroll
    for (int j = 0; j < kElems; ++j) sums[y][x * kElems + j] = sum[j];
    __syncthreads();
    const int c = y * 32 + x;
    if (tile + c < args.columns) {
      double total = 0.0;
      for (int i = 0; i < 8; ++i) total += sums[i][c];
      args.partials[(kept * args.chunks + chunk) * args.columns + tile + c] = total;
    }
    __syncthreads();
  }
}

// A partial sum of a chunk of elements that lie in runs, by a warp.
__global__ void RunsKernel(const SumArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t items = args.kept_count * args.chunks;
  const int64_t step = int64_t{gridDim.x} * (kThreads / 32);
  const int64_t groups = (args.run + kElems - 1) / kElems;  // of a run
  for (int64_t item = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; item < items;
       item += step) {
    const int64_t from = args.kept.OffsetOf(item / args.chunks);
    const int64_t first = item % args.chunks * args.chunk, left = args.rows * groups - first;
    const int64_t end = first + (left < args.chunk ? left : args.chunk);
    double sum = 0.0;
    for (int64_t g = first + lane; g < end; g += 32) {
      const int64_t row = args.rows == 1 ? 0 : g / groups;
      const int64_t at = (g - row * groups) * kElems;
      double v[kElems];
      LoadGroup(args, from + args.summed.OffsetOf(row) + at, args.run - at, v);
#pragma unroll
      for (int j = 0; j < kElems; ++j) sum += v[j];
    }
    sum = WarpReduce(sum, Plus{});
    if (lane == 0) args.partials[item] = sum;
  }
}

struct FinishArgs {
  const double* partials;
  int64_t chunks, columns;
  char* out;
  DType dtype;
  Elements<1> elements;
  double scale;
  bool add;
};

// out (+)= scale times the sum of the partial sums of an element.
__global__ void FinishKernel(const FinishArgs args) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < args.elements.numel;
       i += step) {
    const int64_t kept = i / args.columns, column = i - kept * args.columns;
    const double* const from = args.partials + kept * args.chunks * args.columns + column;
    double sum = 0.0;
    for (int64_t c = 0; c < args.chunks; ++c) sum += from[c * args.columns];
    int64_t offset[1];
    args.elements.OffsetsOf(i, offset);
    const double value = args.scale * sum;
    StoreAs(args.out, args.dtype, offset[0],
            args.add ? LoadAs<double>(args.out, args.dtype, offset[0]) + value : value);
  }
}

template <typename C>
struct ScaledMap {
  using Computed = C;
  C scale;
  __device__ void operator()(const C (&in)[1], C (&out)[1]) const { out[0] = scale * in[0]; }
};

bool IsPacked(const SumArgs& args) {
  const int64_t bytes = SizeOf(args.dtype);
  bool packed = reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  for (const SumDims* dims : {&args.kept, &args.summed}) {
    for (int i = 0; i < dims->rank; ++i) packed = packed && dims->stride[i] * bytes % 16 == 0;
  }
  return packed;
}

// Partial sums [kept, chunks, columns] of x, whose innermost elements are adjacent, for sums of
// shape `sums`. In one chunk, or in as many of at least 64 rows (or groups) as fill a device.
Tensor PartialSums(const Tensor& x, const Shape& sums, bool one_chunk) {
  const Device& device = x.device();
  const kernels::internal::SumSplit split = kernels::internal::SplitDims(x, sums);
  SumArgs args = {static_cast<const char*>(x.raw()), x.dtype(), split.kept, split.summed, 1, 1};
  (split.innermost_kept ? args.columns : args.run) =
      (split.innermost_kept ? args.kept : args.summed).Pop();
  args.kept_count = args.kept.count();
  args.rows = args.summed.count();
  args.packed = IsPacked(args);
  const int64_t tiles = (args.columns + kTileColumns - 1) / kTileColumns;
  const int64_t count =
      split.innermost_kept ? args.rows : args.rows * ((args.run + kElems - 1) / kElems);
  const int64_t most = (split.innermost_kept ? kBlocks : kWarps) / (args.kept_count * tiles);
  const int64_t wanted = one_chunk ? 1 : std::max<int64_t>(1, most);
  args.chunk = std::max<int64_t>(64, (count + wanted - 1) / wanted);
  args.chunks = (count + args.chunk - 1) / args.chunk;
  const Tensor partials =
      Tensor::Empty(device, DType::kF64, {args.kept_count, args.chunks, args.columns},
                    MemoryCategory::kWorkspace);
  args.partials = partials.data<double>();
  const int64_t items = args.kept_count * args.chunks;
  if (split.innermost_kept) {
    Launch(device, {.grid = GridFor(device, items * tiles * kThreads, kThreads), .block = {32, 8}},
           ColumnsKernel, args);
  } else {
    Launch(device, {.grid = GridFor(device, items * 32, kThreads), .block = kThreads}, RunsKernel,
           args);
  }
  return partials;
}

void RunSums(const Tensor& x, const Tensor& out, double scale, kernels::Write write) {
  Tensor partials = PartialSums(x, out.shape(), false);
  if (partials.dim(1) > 32) {
    partials = PartialSums(partials, {partials.dim(0), 1, partials.dim(2)}, true);
  }
  const FinishArgs finish = {partials.data<double>(),
                             partials.dim(1),
                             partials.dim(2),
                             static_cast<char*>(out.raw()),
                             out.dtype(),
                             Elements<1>({&out}),
                             scale,
                             write == kernels::Write::kAdd};
  Launch(out.device(), {.grid = GridFor(out.device(), out.numel(), kThreads), .block = kThreads},
         FinishKernel, finish);
}

}  // namespace

void Kernels::SumOver(const Tensor& x, const Tensor& out, double scale,
                      kernels::Write write) const {
  SHERD_CHECK(x.rank() == out.rank(), "a sum over dimensions keeps the rank");
  SHERD_CHECK(IsFloating(x.dtype()) && IsFloating(out.dtype()),
              "a kernel was given a dtype that is no float");
  if (out.numel() == 0) return;
  if (x.numel() == 0) {
    if (write == kernels::Write::kOverwrite) Fill(out, 0.0);
    return;
  }
  if (x.shape() == out.shape()) {
    if (scale == 1.0) return Cast(x, out, write);
    const bool f64 = x.dtype() == DType::kF64 || out.dtype() == DType::kF64;
    return WithCompute(f64 ? DType::kF64 : DType::kF32, [&]<typename C>(C) {
      RunMap<ScaledMap<C>, 1, 1>({static_cast<C>(scale)}, {&x}, {{{&out, write}}});
    });
  }
  RunSums(kernels::internal::HasAdjacentElements(x) ? x : kernels::Pack(x), out, scale, write);
}

}  // namespace sherd::cuda
