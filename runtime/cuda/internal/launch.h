#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "sherd/runtime/cuda/internal/backend.h"
#include "sherd/runtime/cuda/internal/check.h"

// How kernels are launched. For .cu files.
//
// SHERD_DYNAMIC_SHARED(T, name): `name` is the T[] of the launch's shared_bytes, 16-byte aligned.
// SHERD_HOST_DEVICE: what the functions of kernels/internal that both backends use are marked with.
// The emulator of the tests, which runs these files on a CPU, defines both before this.
#ifndef SHERD_DYNAMIC_SHARED
#define SHERD_DYNAMIC_SHARED(T, name)                           \
  extern __shared__ __align__(16) unsigned char sherd_shared[]; \
  T* const name = reinterpret_cast<T*>(sherd_shared)
#endif

namespace sherd::cuda {

struct LaunchShape {
  dim3 grid = 1;
  dim3 block = 1;
  int64_t shared_bytes = 0;
};

// Queues `kernel` on the calling thread's queue of `device`. Nothing for an empty grid.
// Errors: throws what CUDA says of the launch, and of earlier work.
template <typename... Parameters, typename... Arguments>
void Launch(const Device& device, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = BackendOf(device).stream();
  if (shape.shared_bytes > (48 << 10)) {
    Check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  Check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
        "cudaLaunchKernelEx");
}

// Blocks of `threads` for `items`, at most so many that the device is full `waves` times: kernels
// loop over the rest.
inline unsigned GridFor(const Device& device, int64_t items, int threads, int waves = 16) {
  const int64_t blocks = (items + threads - 1) / threads;
  const int64_t most = int64_t{BackendOf(device).properties().multiprocessors} * waves;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

}  // namespace sherd::cuda
