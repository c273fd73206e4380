#include "sherd/runtime/kernels/max_over.h"

#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/operands.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;

struct MaxArgs {
  const void* x;
  void* values;
  int64_t* indices;
  DType dtype;
  int64_t lines, extent, inner;  // elements of a line are `inner` apart

  __device__ int64_t FirstOf(int64_t line) const {
    return line / inner * extent * inner + line % inner;
  }
};

// The largest so far; an index of -1: none.
template <typename C>
struct Best {
  C value;
  int64_t index;

  // NaN is above all; of equal ones the first.
  __device__ bool IsBelow(C other, int64_t other_index) const {
    if (other_index < 0) return false;
    if (index < 0) return true;
    const bool nan = value != value, other_nan = other != other;
    if (nan || other_nan) return other_nan && (!nan || other_index < index);
    return other > value || (other == value && other_index < index);
  }
  __device__ void Take(C other, int64_t other_index) {
    if (!IsBelow(other, other_index)) return;
    value = other;
    index = other_index;
  }
};

// The value's bits are those of x.
template <typename C>
__device__ inline void Write(const MaxArgs& args, int64_t line, const Best<C>& best) {
  StoreAs(args.values, args.dtype, line, best.value);
  args.indices[line] = best.index;
}

// Reads e for an element of e bytes. A thread takes a line, so that threads side by side read
// elements side by side.
template <typename C>
__global__ void LinesKernel(const MaxArgs args) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t line = int64_t{blockIdx.x} * kThreads + threadIdx.x; line < args.lines;
       line += step) {
    const int64_t first = args.FirstOf(line);
    Best<C> best = {C(0), -1};
    for (int64_t d = 0; d < args.extent; ++d) {
      best.Take(LoadAs<C>(args.x, args.dtype, first + d * args.inner), d);
    }
    Write(args, line, best);
  }
}

// The same with a warp for each line.
template <typename C>
__global__ void WarpsKernel(const MaxArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t step = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t line = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; line < args.lines;
       line += step) {
    const int64_t first = args.FirstOf(line);
    Best<C> best = {C(0), -1};
    for (int64_t d = lane; d < args.extent; d += 32) {
      best.Take(LoadAs<C>(args.x, args.dtype, first + d * args.inner), d);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const C value = __shfl_xor_sync(0xffffffffu, best.value, offset);
      best.Take(value, __shfl_xor_sync(0xffffffffu, best.index, offset));
    }
    if (lane == 0) Write(args, line, best);
  }
}

}  // namespace

void Kernels::MaxOver(const Tensor& x, int dim, const Tensor& values, const Tensor& indices) const {
  SHERD_CHECK(dim >= 0 && dim < x.rank() && x.dim(dim) > 0, "there is no largest of no elements");
  SHERD_CHECK(values.dtype() == x.dtype() && indices.dtype() == DType::kI64 &&
                  values.is_contiguous() && indices.is_contiguous() &&
                  values.numel() == x.numel() / x.dim(dim) && indices.numel() == values.numel(),
              "the outputs of a maximum do not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed = kernels::Pack(x);
  MaxArgs args = {packed.raw(),
                  values.raw(),
                  indices.data<int64_t>(),
                  x.dtype(),
                  values.numel(),
                  x.dim(dim),
                  1};
  for (int i = dim + 1; i < x.rank(); ++i) args.inner *= x.dim(i);
  const bool by_lines = args.inner >= 32;
  const int64_t threads = by_lines ? args.lines : 32 * args.lines;
  WithCompute(x.dtype(), [&]<typename C>(C) {
    Launch(x.device(), {.grid = GridFor(x.device(), threads, kThreads), .block = kThreads},
           by_lines ? LinesKernel<C> : WarpsKernel<C>, args);
  });
}

}  // namespace sherd::cuda
