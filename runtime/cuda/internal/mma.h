#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "sherd/runtime/cuda/internal/types.h"

// Products of 16-bit matrices by a warp on tensor cores, from tiles in shared memory. For .cu
// files; the
// one header with PTX. Rows of tiles begin on 16 bytes.
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

// Loads four 8 x 8 matrices. row_of(l) is where row l % 8 of matrix l / 8 begins, on 16 bytes. A
// lane gets (lane / 4, c) of each and its right neighbour, c = 2 (lane % 4); kTransposed, (c, lane
// / 4) and its lower neighbour. All 32 lanes call it. Source: the PTX manual on ldmatrix.
template <bool kTransposed, typename Row>
__device__ __forceinline__ void LoadMatrices(uint32_t (&words)[4], const Row& row_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#if defined(__CUDA_ARCH__)
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row_of(lane)));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
  }
#else
  for (int m = 0; m < 4; ++m) {
    const int i = lane / 4, c = lane % 4 * 2;
    const auto low = kTransposed ? row_of(8 * m + c)[i] : row_of(8 * m + i)[c];
    const auto high = kTransposed ? row_of(8 * m + c + 1)[i] : row_of(8 * m + i)[c + 1];
    words[m] = low.bits | static_cast<uint32_t>(high.bits) << 16;
  }
#endif
}

// The fragment of a matrix whose rows are `pitch` elements apart, from `tile` on.
template <typename T>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], const T* tile, int pitch) {
  LoadMatrices<false>(a, [&](int l) { return tile + l % 16 * pitch + l / 16 * 8; });
}

// Two fragments of b, of columns 0 to 7 and 8 to 15.
struct PairOfB {
  uint32_t words[4];
};

// d0 and d1 += a times the two.
template <typename T>
__device__ __forceinline__ void MultiplyAddPair(float (&d0)[4], float (&d1)[4],
                                                const uint32_t (&a)[4], const PairOfB& b) {
  MultiplyAdd<T>(d0, a, {b.words[0], b.words[1]});
  MultiplyAdd<T>(d1, a, {b.words[2], b.words[3]});
}

// Of a matrix [16, 16] whose transpose has rows `pitch` elements apart, from `tile` on.
template <typename T>
__device__ __forceinline__ void LoadTransposedB(PairOfB& b, const T* tile, int pitch) {
  LoadMatrices<false>(b.words,
                      [&](int l) { return tile + (l / 16 * 8 + l % 8) * pitch + l / 8 % 2 * 8; });
}

// Of a matrix [16, 16] whose rows are `pitch` elements apart, from `tile` on.
template <typename T>
__device__ __forceinline__ void LoadB(PairOfB& b, const T* tile, int pitch) {
  LoadMatrices<true>(b.words, [&](int l) { return tile + l % 16 * pitch + l / 16 * 8; });
}

}  // namespace sherd::cuda
