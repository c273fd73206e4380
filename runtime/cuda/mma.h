#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "sherd/runtime/cuda/types.h"

// Products of 16-bit matrices by a warp on tensor cores, from tiles in shared memory. For .cu
// files; the one header with PTX.
//
// What lane l holds, with g = l / 4 and c = 2 (l % 4), two elements of a row or column in a word:
//   a [16, 16]: (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8), each with its right neighbour;
//   b [16, 8]:  (c, g), (c + 8, g), each with its lower neighbour;
//   d [16, 8]:  (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1), in f32.
// Source: the PTX manual on mma.m16n8k16.
namespace sherd::cuda {

// d += a b. All 32 lanes call it.
template <typename T>
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#elif defined(SHERD_CUDA_EMULATED)
  const float before[4] = {d[0], d[1], d[2], d[3]};
  emulated::MmaM16N8K16(d, a, b, before, std::is_same_v<T, BFloat16>);
#endif
}

// Two values rounded to T, the first in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return Rounder<T>::Round(low).bits | static_cast<uint32_t>(Rounder<T>::Round(high).bits) << 16;
#endif
}

// 2^x to 2 ulp; 0 below the smallest normal number.
__device__ __forceinline__ float FastExp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// The two elements from `at` on, which is at an even place.
template <typename T>
__device__ __forceinline__ uint32_t PairAt(const T* at) {
  return *reinterpret_cast<const uint32_t*>(at);
}

// The fragment of a matrix whose rows are `pitch` elements apart, from `tile` on.
template <typename T>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], const T* tile, int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const at = tile + lane / 4 * pitch + lane % 4 * 2;
  a[0] = PairAt(at);
  a[1] = PairAt(at + 8 * pitch);
  a[2] = PairAt(at + 8);
  a[3] = PairAt(at + 8 * pitch + 8);
}

// The fragment of b whose transpose has rows `pitch` elements apart, from `tile` on.
template <typename T>
__device__ __forceinline__ void LoadTransposedB(uint32_t (&b)[2], const T* tile, int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const at = tile + lane / 4 * pitch + lane % 4 * 2;
  b[0] = PairAt(at);
  b[1] = PairAt(at + 8);
}

// The fragment of b whose rows are `pitch` elements apart, from `tile` on.
template <typename T>
__device__ __forceinline__ void LoadB(uint32_t (&b)[2], const T* tile, int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const at = tile + lane % 4 * 2 * pitch + lane / 4;
  b[0] = at[0].bits | static_cast<uint32_t>(at[pitch].bits) << 16;
  b[1] = at[8 * pitch].bits | static_cast<uint32_t>(at[9 * pitch].bits) << 16;
}

}  // namespace sherd::cuda
