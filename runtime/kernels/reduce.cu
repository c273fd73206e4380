#include "sherd/runtime/kernels/reduce.h"

#include <algorithm>

#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/operands.h"
#include "sherd/runtime/cuda/internal/reduce.h"
#include "sherd/runtime/cuda/internal/views.h"

// Two passes: a partial result for each block, then one for all. The size alone decides how many
// blocks there are and what each takes, so neither the device nor how the elements lie changes a
// bit of a sum.
//
// Bytes moved: reads e for an element of e bytes, and writes and reads 8 for a block.
namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;
// Adjacent elements that a thread takes at once.
constexpr int kElems = 8;

struct Identity {
  __device__ static double Of(double x) { return x; }
};
struct Magnitude {
  __device__ static double Of(double x) { return x < 0.0 ? -x : x; }
};
struct Square {
  __device__ static double Of(double x) { return x * x; }
};

struct ReduceArgs {
  const char* x;
  DType dtype;
  Elements<1> elements;
  bool packed;  // contiguous and aligned
};

// Elements [first, first + kElems) as doubles, 0 behind the end.
__device__ inline void LoadGroup(const ReduceArgs& args, int64_t first, double (&v)[kElems]) {
  if (args.packed && first + kElems <= args.elements.numel) {
    const int bytes = ElemBytes(args.dtype);
    uint32_t words[2 * kElems] = {};
    LoadWords(args.x + first * bytes, kElems * bytes, words);
    return Decode(words, args.dtype, v);
  }
#pragma unroll
  for (int j = 0; j < kElems; ++j) {
    v[j] = 0.0;
    if (first + j >= args.elements.numel) continue;
    int64_t offset[1];
    args.elements.OffsetsOf(first + j, offset);
    v[j] = LoadAs<double>(args.x, args.dtype, offset[0]);
  }
}

template <typename Transform, typename Op>
__global__ void PartialKernel(const ReduceArgs args, double* partials) {
  const int64_t groups = (args.elements.numel + kElems - 1) / kElems;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const Op op;
  double result = 0.0;
  for (int64_t g = int64_t{blockIdx.x} * kThreads + threadIdx.x; g < groups; g += step) {
    double v[kElems];
    LoadGroup(args, g * kElems, v);
#pragma unroll
    for (int j = 0; j < kElems; ++j) result = op(result, Transform::Of(v[j]));
  }
  result = BlockReduce(result, 0.0, op);
  if (threadIdx.x == 0) partials[blockIdx.x] = result;
}

template <typename Op>
__global__ void CombineKernel(const double* partials, int blocks, double* out) {
  const Op op;
  double result = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads) {
    result = op(result, partials[i]);
  }
  result = BlockReduce(result, 0.0, op);
  if (threadIdx.x == 0) *out = result;
}

int64_t BlocksOf(const Tensor& x) {
  const int64_t groups = (x.numel() + kElems - 1) / kElems;
  return std::min(kMostBlocks, (groups + kThreads - 1) / kThreads);
}

// Reduces x to *out on the device, by way of as many partial results as it has blocks.
template <typename Transform, typename Op>
void Reduce(const Tensor& x, double* partials, double* out) {
  ReduceArgs args = {nullptr, x.dtype(), Elements<1>({&x}), false};
  args.x = static_cast<const char*>(x.raw());
  args.packed = args.elements.contiguous() && reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  const int64_t blocks = BlocksOf(x);
  Launch(x.device(), {.grid = static_cast<unsigned>(blocks), .block = kThreads},
         PartialKernel<Transform, Op>, args, blocks > 1 ? partials : out);
  if (blocks > 1) {
    Launch(x.device(), {.grid = 1, .block = kThreads}, CombineKernel<Op>, partials,
           static_cast<int>(blocks), out);
  }
}

void Reduce(kernels::Reduction what, const Tensor& x, double* partials, double* out) {
  switch (what) {
    case kernels::Reduction::kSum:
      return Reduce<Identity, Plus>(x, partials, out);
    case kernels::Reduction::kSumAbs:
      return Reduce<Magnitude, Plus>(x, partials, out);
    case kernels::Reduction::kSumSquares:
      return Reduce<Square, Plus>(x, partials, out);
    case kernels::Reduction::kMaxAbs:
      return Reduce<Magnitude, Most>(x, partials, out);
  }
}

}  // namespace

// Tensors share the memory of their partial results: one is done before the next begins.
void Kernels::ReduceEach(kernels::Reduction what, std::span<const Tensor> xs,
                         std::span<double> out) const {
  int64_t most_blocks = 0;
  for (const Tensor& x : xs) {
    SHERD_CHECK(IsFloating(x.dtype()), "a kernel was given a dtype that is no float");
    most_blocks = std::max(most_blocks, BlocksOf(x));
  }
  if (most_blocks == 0) return std::fill(out.begin(), out.end(), 0.0);
  const Device& device = xs[0].device();
  const auto count = static_cast<int64_t>(xs.size());
  const Tensor memory =
      Tensor::Empty(device, DType::kF64, {count + most_blocks}, MemoryCategory::kWorkspace);
  for (int64_t i = 0; i < count; ++i) {
    if (BlocksOf(xs[static_cast<size_t>(i)]) == 0) continue;
    Reduce(what, xs[static_cast<size_t>(i)], memory.data<double>() + count,
           memory.data<double>() + i);
  }
  device.CopyToHost(out.data(), memory.raw(), count * static_cast<int64_t>(sizeof(double)));
  // Of what is empty nothing was written.
  for (int64_t i = 0; i < count; ++i) {
    if (xs[static_cast<size_t>(i)].numel() == 0) out[static_cast<size_t>(i)] = 0.0;
  }
}

}  // namespace sherd::cuda
