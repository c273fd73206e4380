#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/micro_gemm.h"
#include "sherd/runtime/kernels/internal/transpose.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

constexpr int64_t kBlockM = 384;
constexpr int64_t kBlockN = 64;
constexpr int64_t kBlockK = 128;  // of 64 columns of b, which then fit the nearest cache in f32

// Unpacks a block so that its columns are adjacent, with zeros behind them. REQUIRES: row or col
// is 1.
template <typename T, typename C>
void Pack(const T* from, int64_t row, int64_t col, int64_t rows, int64_t cols, int64_t padded_cols,
          C* to) {
  if (col == 1) {
    for (int64_t r = 0; r < rows; ++r) {
      C* const line = to + r * padded_cols;
      const T* const x = from + r * row;
      SHERD_SIMD for (int64_t c = 0; c < cols; ++c) line[c] = Widen(x[c]);
    }
  } else {
    Transpose(from, col, cols, rows, to, padded_cols);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = cols; c < padded_cols; ++c) to[r * padded_cols + c] = C(0);
  }
}

// One block of the product: panels of b (and of a, where it needs unpacking) go through the
// workspace.
template <typename T, typename Out>
void Gemm(const internal::GemmArgs& args) {
  using C = Compute<T>;
  const T* const a = static_cast<const T*>(args.a);
  const T* const b = static_cast<const T*>(args.b);
  C* const packed_b = static_cast<C*>(args.workspace);
  C* const sum = packed_b + kBlockK * kBlockN;
  C* const packed_a = sum + kBlockM * kBlockN;
  const int64_t n = RoundUp(args.n, kLanes<C>);
  for (int64_t k0 = 0; k0 < args.k; k0 += kBlockK) {
    const int64_t k = Min(kBlockK, args.k - k0);
    Pack(b + k0 * args.b_row, args.b_row, args.b_col, k, args.n, n, packed_b);
    // Panel a keeps the order it has in memory, so that unpacking it reads and writes along lines.
    const T* const panel = a + k0 * args.a_col;
    Strided<C> block_a = {packed_a, k, 1};
    if (sizeof(T) == sizeof(C)) {
      block_a = {reinterpret_cast<const C*>(panel), args.a_row, args.a_col};
    } else if (args.a_row == 1) {
      block_a = {packed_a, 1, args.m};
      Pack(panel, args.a_col, 1, k, args.m, args.m, packed_a);
    } else {
      Pack(panel, args.a_row, args.a_col, args.m, k, k, packed_a);
    }
    SmallGemm(args.m, n, k, block_a, static_cast<const C*>(packed_b), n, sum, n, k0 > 0);
  }
  Out* const c = static_cast<Out*>(args.c);
  for (int64_t i = 0; i < args.m; ++i) {
    Out* const to = c + i * args.c_row;
    const C* const from = sum + i * n;
    if (args.add) {
      SHERD_SIMD for (int64_t j = 0; j < args.n; ++j) Put<true>(to + j, from[j]);
    } else {
      SHERD_SIMD for (int64_t j = 0; j < args.n; ++j) Put<false>(to + j, from[j]);
    }
  }
}

}  // namespace

extern const internal::GemmLoops kGemmLoops;
const internal::GemmLoops kGemmLoops = {
    .block_m = kBlockM,
    .block_n = kBlockN,
    .workspace_bytes = (kBlockK * kBlockN + kBlockM * kBlockN + kBlockM * kBlockK) * 8,
    .f64 = Gemm<double, double>,
    .bf16 = Gemm<Bf16, Bf16>,
    .bf16_to_f32 = Gemm<Bf16, float>,
    .f16 = Gemm<F16, F16>,
    .f16_to_f32 = Gemm<F16, float>,
};

}  // namespace sherd::kernels::SHERD_ISA
