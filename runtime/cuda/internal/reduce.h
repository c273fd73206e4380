#pragma once

#include <cuda_runtime.h>

// Sums and maxima over the threads of a block, in an order that the block's size alone decides. For
// .cu files.
namespace sherd::cuda {

struct Plus {
  template <typename C>
  __device__ C operator()(C a, C b) const {
    return a + b;
  }
};
// NaN wins.
struct Most {
  template <typename C>
  __device__ C operator()(C a, C b) const {
    return a > b || a != a ? a : b;
  }
};

// Over the 32 threads of a warp; every one gets the result.
template <typename Op, typename C>
__device__ inline C WarpReduce(C value, Op op) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Over the block; every thread gets the result. All threads of the block call it; the block has a
// multiple of 32 of them, at most 1024. `none` is what an absent value counts as.
template <typename Op, typename C>
__device__ inline C BlockReduce(C value, C none, Op op) {
  __shared__ C of_warp[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  value = WarpReduce(value, op);
  __syncthreads();  // of_warp may still be read for a reduction before
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  return WarpReduce(lane < warps ? of_warp[lane] : none, op);
}

template <typename C>
__device__ inline C BlockSum(C value) {
  return BlockReduce(value, C(0), Plus{});
}

}  // namespace sherd::cuda
