#pragma once

#include <cstdint>

#include "cuda_runtime.h"

// Kernels as the backend writes them, each queued on a stream.
namespace sherd::testing {

// c[i] = a[i] + b[i], with threads that stride over the grid.
cudaError_t AddVectors(const float* a, const float* b, float* c, int64_t n, cudaStream_t stream);
// Adds the sum of each block of 256 numbers of x to sums[block].
cudaError_t SumBlocks(const float* x, double* sums, int64_t n, cudaStream_t stream);
// y[cols x rows] is x[rows x cols] transposed, by tiles in shared memory.
cudaError_t Transpose(const float* x, float* y, int rows, int cols, cudaStream_t stream);
// Turns each block of `block` numbers around in place, through dynamic shared memory.
cudaError_t ReverseBlocks(int* x, int blocks, int block, cudaStream_t stream);
// d[16 x 8] = a[16 x 16] b[16 x 8] + c, row major, numbers of 16 bits as they are in memory.
cudaError_t Multiply(const uint16_t* a, const uint16_t* b, const float* c, float* d, bool is_bf16,
                     cudaStream_t stream);
// out[lane * 6 + i]: what the i-th way to talk inside of a warp gives lane, for lanes up to
// `lanes`.
cudaError_t Talk(int* out, int lanes, cudaStream_t stream);
// out[0..2]: count, or and and of "thread < bound" over a block of 100, from __syncthreads_*.
cudaError_t Vote(int* out, int bound, cudaStream_t stream);
// Adds 1 to *count from 1000 threads, and keeps the largest index in *largest.
cudaError_t CountThreads(float* count, int* largest, cudaStream_t stream);
// order[i]: the i-th block that ran.
cudaError_t NoteOrder(int* order, unsigned* next, int blocks, cudaStream_t stream);
// Writes x[i].
cudaError_t Poke(float* x, int64_t i, float value, cudaStream_t stream);
// Wrong: half of the block waits at another barrier; or at none, but for the warp.
cudaError_t Diverge(bool for_warp, cudaStream_t stream);
// Wrong: reads what another thread of the block writes, without a barrier between.
cudaError_t ForgetBarrier(int* out, cudaStream_t stream);
// With this many threads in a block and bytes of dynamic shared memory; `raise` the limit before.
cudaError_t Launch(unsigned threads, size_t dynamic_bytes, bool raise, cudaStream_t stream);

}  // namespace sherd::testing
