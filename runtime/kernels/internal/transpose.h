#pragma once

#include "sherd/runtime/kernels/internal/isa_types.h"

// Transposing while unpacking, a square of vectors at a time.
namespace sherd::kernels::SHERD_ISA {

// The lanes of a and b in turn: the first half of them, and the second.
template <typename C>
struct Interleaved {
  Vector<C> low, high;
};
template <typename C>
SHERD_INLINE Interleaved<C> Interleave(Vector<C> a, Vector<C> b) {
  constexpr int64_t kCount = kLanes<C>;
  if constexpr (kCount == 2) {
    return {__builtin_shufflevector(a, b, 0, 2), __builtin_shufflevector(a, b, 1, 3)};
  } else if constexpr (kCount == 4) {
    return {__builtin_shufflevector(a, b, 0, 4, 1, 5), __builtin_shufflevector(a, b, 2, 6, 3, 7)};
  } else if constexpr (kCount == 8) {
    return {__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11),
            __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)};
  } else {
    static_assert(kCount == 16);
    return {__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
            __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                    31)};
  }
}

// to[c][r] = from[r][c] for kLanes rows and columns. Interleaving rows i and i + n/2, as often as n
// has factors of two, transposes n rows.
template <typename T, typename C>
SHERD_INLINE void TransposeSquare(const T* from, int64_t from_row, C* to, int64_t to_row) {
  constexpr int kCount = static_cast<int>(kLanes<C>);
  Vector<C> v[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    if constexpr (sizeof(T) == sizeof(C)) {
      v[i] = LoadVector(from + i * from_row);
    } else {
      C line[kCount];
      SHERD_SIMD for (int j = 0; j < kCount; ++j) line[j] = Widen(from[i * from_row + j]);
      v[i] = LoadVector<C>(line);
    }
  }
#pragma GCC unroll 4
  for (int stage = 1; stage < kCount; stage *= 2) {
    Vector<C> next[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      const Interleaved<C> pair = Interleave<C>(v[i], v[i + kCount / 2]);
      next[2 * i] = pair.low;
      next[2 * i + 1] = pair.high;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) v[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) StoreVector(to + i * to_row, v[i]);
}

// to[c * to_row + r] = from[r * from_row + c] for `rows` rows and `cols` columns.
template <typename T, typename C>
static void Transpose(const T* from, int64_t from_row, int64_t rows, int64_t cols, C* to,
                      int64_t to_row) {
  constexpr int64_t kCount = kLanes<C>;
  const int64_t whole_rows = rows / kCount * kCount, whole_cols = cols / kCount * kCount;
  for (int64_t r = 0; r < whole_rows; r += kCount) {
    for (int64_t c = 0; c < whole_cols; c += kCount) {
      TransposeSquare(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c) {
      to[c * to_row + r] = Widen(from[r * from_row + c]);
    }
  }
}

}  // namespace sherd::kernels::SHERD_ISA
