#include "tests/runtime/cuda_emulator_kernels.h"

namespace sherd::testing {
namespace {

template <typename... Parameters, typename... Arguments>
cudaError_t On(cudaStream_t stream, dim3 grid, dim3 block, size_t dynamic_bytes,
               void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

__global__ void __launch_bounds__(128)
    AddKernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
              int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    c[i] = __ldg(a + i) + b[i];
  }
}

template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

__global__ void SumKernel(const float* x, double* sums, int64_t n) {
  __shared__ double parts[8];
  const int64_t i = blockIdx.x * 256 + threadIdx.x;
  const double sum = WarpSum(i < n ? double{x[i]} : 0.0);
  if (threadIdx.x % warpSize == 0) parts[threadIdx.x / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const double total = WarpSum(threadIdx.x < 8 ? parts[threadIdx.x] : 0.0);
  if (threadIdx.x == 0) atomicAdd(sums + blockIdx.x, total);
}

__global__ void TransposeKernel(const float* x, float* y, int rows, int cols) {
  __shared__ float tile[32][33];
  const int col = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  for (unsigned j = threadIdx.y; j < 32; j += 8) {
    const int row = static_cast<int>(blockIdx.y * 32 + j);
    if (row < rows && col < cols) tile[j][threadIdx.x] = x[row * cols + col];
  }
  __syncthreads();
  const int to_col = static_cast<int>(blockIdx.y * 32 + threadIdx.x);
  for (unsigned j = threadIdx.y; j < 32; j += 8) {
    const int to_row = static_cast<int>(blockIdx.x * 32 + j);
    if (to_row < cols && to_col < rows) y[to_row * rows + to_col] = tile[threadIdx.x][j];
  }
}

__global__ void ReverseKernel(int* x) {
  SHERD_DYNAMIC_SHARED(int, shared);
  int* mine = x + blockIdx.x * blockDim.x;
  shared[threadIdx.x] = mine[threadIdx.x];
  __syncthreads();
  mine[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__device__ uint32_t Pair(uint16_t low, uint16_t high) { return low | uint32_t{high} << 16; }

// Loads the fragments the way the PTX ISA numbers them: group = lane / 4, within = lane % 4.
__global__ void MultiplyKernel(const uint16_t* a, const uint16_t* b, const float* c, float* d,
                               bool is_bf16) {
  const unsigned group = threadIdx.x >> 2;
  const unsigned within = threadIdx.x & 3;
  const auto pair_of_a = [&](unsigned row, unsigned col) {
    return Pair(a[row * 16 + col], a[row * 16 + col + 1]);
  };
  const auto pair_of_b = [&](unsigned row, unsigned col) {
    return Pair(b[row * 8 + col], b[(row + 1) * 8 + col]);
  };
  const uint32_t fragment_a[4] = {pair_of_a(group, within * 2), pair_of_a(group + 8, within * 2),
                                  pair_of_a(group, within * 2 + 8),
                                  pair_of_a(group + 8, within * 2 + 8)};
  const uint32_t fragment_b[2] = {pair_of_b(within * 2, group), pair_of_b(within * 2 + 8, group)};
  const unsigned at[4] = {group * 8 + within * 2, group * 8 + within * 2 + 1,
                          (group + 8) * 8 + within * 2, (group + 8) * 8 + within * 2 + 1};
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[at[i]];
  emulated::MmaM16N8K16(sums, fragment_a, fragment_b, sums, is_bf16);
  for (int i = 0; i < 4; ++i) d[at[i]] = sums[i];
}

__global__ void TalkKernel(int* out, int lanes) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= lanes) return;
  const unsigned mask = __activemask();
  const unsigned all = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
  out[lane * 6 + 0] = __shfl_sync(all, lane * 10, 3);
  out[lane * 6 + 1] = __shfl_down_sync(all, lane, 1, 4);
  out[lane * 6 + 2] = __shfl_up_sync(all, lane, 2);
  out[lane * 6 + 3] = static_cast<int>(__ballot_sync(all, lane % 2));
  out[lane * 6 + 4] = __any_sync(all, lane == 2) * 2 + __all_sync(all, lane < lanes);
  out[lane * 6 + 5] = __popc(mask);
}

__global__ void VoteKernel(int* out, int bound) {
  const int in = static_cast<int>(threadIdx.x) < bound;
  const int count = __syncthreads_count(in);
  const int any = __syncthreads_or(in);
  const int all = __syncthreads_and(in);
  if (threadIdx.x == 99) {
    out[0] = count;
    out[1] = any;
    out[2] = all;
  }
}

__global__ void CountKernel(float* count, int* largest) {
  atomicAdd(count, 1.0f);
  atomicMax(largest, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}

__global__ void OrderKernel(int* order, unsigned* next) {
  order[atomicAdd(next, 1u)] = static_cast<int>(blockIdx.x);
}

__global__ void PokeKernel(float* x, int64_t i, float value) { x[i] = value; }

__global__ void DivergeKernel(bool for_warp) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else if (for_warp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

__global__ void ForgetKernel(int* out) {
  __shared__ int seen[64];
  seen[threadIdx.x] = 0;
  __syncthreads();
  seen[threadIdx.x] = 1;
  out[threadIdx.x] = seen[63 - threadIdx.x];  // needs a barrier before
}

template <bool kRaised>
__global__ void NothingKernel(int) {}

}  // namespace

cudaError_t AddVectors(const float* a, const float* b, float* c, int64_t n, cudaStream_t stream) {
  return On(stream, 3, 128, 0, AddKernel, a, b, c, n);
}

cudaError_t SumBlocks(const float* x, double* sums, int64_t n, cudaStream_t stream) {
  return On(stream, static_cast<unsigned>((n + 255) / 256), 256, 0, SumKernel, x, sums, n);
}

cudaError_t Transpose(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
  const dim3 grid((cols + 31) / 32, (rows + 31) / 32);
  return On(stream, grid, dim3(32, 8), 0, TransposeKernel, x, y, rows, cols);
}

cudaError_t ReverseBlocks(int* x, int blocks, int block, cudaStream_t stream) {
  return On(stream, blocks, block, sizeof(int) * block, ReverseKernel, x);
}

cudaError_t Multiply(const uint16_t* a, const uint16_t* b, const float* c, float* d, bool is_bf16,
                     cudaStream_t stream) {
  return On(stream, 1, 32, 0, MultiplyKernel, a, b, c, d, is_bf16);
}

cudaError_t Talk(int* out, int lanes, cudaStream_t stream) {
  return On(stream, 1, 32, 0, TalkKernel, out, lanes);
}

cudaError_t Vote(int* out, int bound, cudaStream_t stream) {
  return On(stream, 1, 100, 0, VoteKernel, out, bound);
}

cudaError_t CountThreads(float* count, int* largest, cudaStream_t stream) {
  return On(stream, 10, 100, 0, CountKernel, count, largest);
}

cudaError_t NoteOrder(int* order, unsigned* next, int blocks, cudaStream_t stream) {
  return On(stream, blocks, 1, 0, OrderKernel, order, next);
}

cudaError_t Poke(float* x, int64_t i, float value, cudaStream_t stream) {
  return On(stream, 1, 1, 0, PokeKernel, x, i, value);
}

cudaError_t Diverge(bool for_warp, cudaStream_t stream) {
  return On(stream, 1, 64, 0, DivergeKernel, for_warp);
}

cudaError_t ForgetBarrier(int* out, cudaStream_t stream) {
  return On(stream, 1, 64, 0, ForgetKernel, out);
}

cudaError_t Launch(unsigned threads, size_t dynamic_bytes, bool raise, cudaStream_t stream) {
  void (*kernel)(int) = raise ? NothingKernel<true> : NothingKernel<false>;
  if (raise) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(dynamic_bytes));
    if (error != cudaSuccess) return error;
  }
  return On(stream, 1, threads, dynamic_bytes, kernel, 1);
}

}  // namespace sherd::testing
