#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/cuda/internal/types.h"

// Elements of any float dtype, read into the type a kernel computes in and written from it. For .cu
// files.
//
// The dtype is a value that all threads share, so a branch on it costs nothing beside memory, and a
// kernel is compiled for float and double instead of for every combination of dtypes.
namespace sherd::cuda {

// Calls f(float{}) or f(double{}): the type that arithmetic on a float dtype runs in.
template <typename F>
void WithCompute(DType dtype, const F& f) {
  SHERD_CHECK(IsFloating(dtype), "a kernel was given a dtype that is no float");
  ComputeDTypeOf(dtype) == DType::kF64 ? f(double{}) : f(float{});
}

__device__ inline int ElemBytes(DType dtype) {
  if (dtype == DType::kBF16 || dtype == DType::kF16) return 2;
  return dtype == DType::kF64 ? 8 : 4;
}

// Element `at` of `data`.
template <typename C>
__device__ inline C LoadAs(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<C>(static_cast<const float*>(data)[at]);
    case DType::kF64:
      return static_cast<C>(static_cast<const double*>(data)[at]);
    case DType::kBF16:
      return static_cast<C>(Widen(static_cast<const BFloat16*>(data)[at]));
    default:
      return static_cast<C>(Widen(static_cast<const Float16*>(data)[at]));
  }
}

// Rounds `value` into element `at` of `data`.
template <typename C>
__device__ inline void StoreAs(void* data, DType dtype, int64_t at, C value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[at] = Rounder<float>::Round(value);
      break;
    case DType::kF64:
      static_cast<double*>(data)[at] = Rounder<double>::Round(value);
      break;
    case DType::kBF16:
      static_cast<BFloat16*>(data)[at] = Rounder<BFloat16>::Round(value);
      break;
    default:
      static_cast<Float16*>(data)[at] = Rounder<Float16>::Round(value);
  }
}

// What one access to memory moves.
struct __attribute__((may_alias, aligned(16))) Chunk {
  uint32_t w[4];
};
struct __attribute__((may_alias, aligned(8))) HalfChunk {
  uint32_t w[2];
};

// Reads `bytes`, 8 or a multiple of 16, from an address aligned to 8 or 16. Apart from Decode, so
// that a kernel asks for all its operands before it waits for one.
template <int kWords>
__device__ inline void LoadWords(const void* from, int bytes, uint32_t (&words)[kWords]) {
  if (bytes == 8) {
    const HalfChunk chunk = *static_cast<const HalfChunk*>(from);
    words[0] = chunk.w[0];
    words[1] = chunk.w[1];
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) {
    if (16 * i >= bytes) continue;
    const Chunk chunk = static_cast<const Chunk*>(from)[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[4 * i + j] = chunk.w[j];
  }
}

template <int kWords>
__device__ inline void StoreWords(void* to, int bytes, const uint32_t (&words)[kWords]) {
  if (bytes == 8) {
    *static_cast<HalfChunk*>(to) = {{words[0], words[1]}};
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) {
    if (16 * i >= bytes) continue;
    static_cast<Chunk*>(to)[i] = {
        {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}};
  }
}

__device__ inline uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
__device__ inline uint64_t BitsOf(double x) { return __builtin_bit_cast(uint64_t, x); }

// Element j of what LoadWords read, for each stored type.
template <typename T>
struct InWords {
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));  // of the 16-bit types

  __device__ static T Get(const uint32_t* words, int j) {
    if constexpr (sizeof(T) == 8) {
      return __builtin_bit_cast(T, static_cast<uint64_t>(words[2 * j + 1]) << 32 | words[2 * j]);
    } else if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(T, words[j]);
    } else {
      T x;
      x.bits = static_cast<uint16_t>(words[j / kPerWord] >> (16 * (j % kPerWord)));
      return x;
    }
  }
  __device__ static void Set(uint32_t* words, int j, T x) {
    if constexpr (sizeof(T) == 8) {
      const uint64_t bits = BitsOf(x);
      words[2 * j] = static_cast<uint32_t>(bits);
      words[2 * j + 1] = static_cast<uint32_t>(bits >> 32);
    } else if constexpr (sizeof(T) == 4) {
      words[j] = BitsOf(x);
    } else {
      const uint32_t bits = static_cast<uint32_t>(x.bits) << (16 * (j % kPerWord));
      words[j / kPerWord] = j % kPerWord == 0 ? bits : words[j / kPerWord] | bits;
    }
  }
};

template <typename T, typename C, int N, int kWords>
__device__ inline void DecodeAs(const uint32_t (&words)[kWords], C (&v)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) v[j] = static_cast<C>(Widen(InWords<T>::Get(words, j)));
}

// The N elements that LoadWords read. REQUIRES: they fit: no f64 where C is float.
template <typename C, int N, int kWords>
__device__ inline void Decode(const uint32_t (&words)[kWords], DType dtype, C (&v)[N]) {
  if (dtype == DType::kF32) return DecodeAs<float>(words, v);
  if (dtype == DType::kBF16) return DecodeAs<BFloat16>(words, v);
  if (dtype == DType::kF16) return DecodeAs<Float16>(words, v);
  if constexpr (kWords >= 2 * N) DecodeAs<double>(words, v);
}

template <typename T, typename C, int N, int kWords>
__device__ inline void EncodeAs(const C (&v)[N], uint32_t (&words)[kWords]) {
#pragma unroll
  for (int j = 0; j < N; ++j) InWords<T>::Set(words, j, Rounder<T>::Round(v[j]));
}

// What StoreWords is to write.
template <typename C, int N, int kWords>
__device__ inline void Encode(const C (&v)[N], DType dtype, uint32_t (&words)[kWords]) {
  if (dtype == DType::kF32) return EncodeAs<float>(v, words);
  if (dtype == DType::kBF16) return EncodeAs<BFloat16>(v, words);
  if (dtype == DType::kF16) return EncodeAs<Float16>(v, words);
  if constexpr (kWords >= 2 * N) EncodeAs<double>(v, words);
}

}  // namespace sherd::cuda
