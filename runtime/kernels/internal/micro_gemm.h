#pragma once

#include "sherd/runtime/kernels/internal/isa_types.h"

// The register-blocked product that attention and our own matmul are made of.
namespace sherd::kernels::SHERD_ISA {

// A small row-major matrix whose element (i, k) is at i * row + k * col.
template <typename C>
struct Strided {
  const C* data;
  int64_t row, col;
};

// c (+)= a b for kRows rows and kVectors vectors of columns, kept in registers over k.
template <int kRows, int kVectors, typename C>
SHERD_INLINE void MicroTile(int64_t k, Strided<C> a, const C* b, int64_t b_row, C* c, int64_t c_row,
                            bool add) {
  Vector<C> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Vector<C>{};
  }
  const C* a_k = a.data;
  for (int64_t kk = 0; kk < k; ++kk, a_k += a.col, b += b_row) {
    Vector<C> from_b[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) from_b[j] = LoadVector(b + j * kLanes<C>);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const C from_a = a_k[i * a.row];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sum[i][j] += from_a * from_b[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      C* const to = c + i * c_row + j * kLanes<C>;
      StoreVector(to, add ? LoadVector<C>(to) + sum[i][j] : sum[i][j]);
    }
  }
}

// Rows and vectors of a tile: as many sums as the registers hold beside one row of b.
inline constexpr int kTileRows = SHERD_VECTOR_BYTES == 64 ? 4 : 6;
inline constexpr int kTileVectors = SHERD_VECTOR_BYTES == 64 ? 4 : 2;

template <int kVectors, typename C>
SHERD_INLINE void MicroColumn(int64_t m, int64_t k, Strided<C> a, const C* b, int64_t b_row, C* c,
                              int64_t c_row, bool add) {
  const auto rows = [&]<int kRows>(int64_t i) {
    MicroTile<kRows, kVectors>(k, {a.data + i * a.row, a.row, a.col}, b, b_row, c + i * c_row,
                               c_row, add);
  };
  int64_t i = 0;
  for (; i + kTileRows <= m; i += kTileRows) rows.template operator()<kTileRows>(i);
  if (i + 4 <= m) {
    rows.template operator()<4>(i);
    i += 4;
  }
  if (i + 2 <= m) {
    rows.template operator()<2>(i);
    i += 2;
  }
  if (i < m) rows.template operator()<1>(i);
}

// c [m, n] (+)= a [m, k] b [k, n], rows of b and c adjacent in n. REQUIRES: n a multiple of kLanes.
template <typename C>
static void SmallGemm(int64_t m, int64_t n, int64_t k, Strided<C> a, const C* b, int64_t b_row,
                      C* c, int64_t c_row, bool add) {
  constexpr int64_t kWide = kTileVectors * kLanes<C>;
  int64_t j = 0;
  for (; j + kWide <= n; j += kWide) {
    MicroColumn<kTileVectors>(m, k, a, b + j, b_row, c + j, c_row, add);
  }
  for (; j < n; j += kLanes<C>) MicroColumn<1>(m, k, a, b + j, b_row, c + j, c_row, add);
}

}  // namespace sherd::kernels::SHERD_ISA
