#include "sherd/runtime/kernels/matmul.h"

#include "sherd/runtime/cpu/isa.h"
#include "sherd/runtime/kernels/backend.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/onednn_matmul.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::GemmArgs;
using internal::MatmulProblem;

int64_t RowStride(const Tensor& x) { return x.dim(0) == 1 ? x.dim(1) : x.strides()[0]; }

// Whether elements of a row are adjacent and rows do not overlap.
bool HasRows(const Tensor& x) {
  return (x.dim(1) <= 1 || x.strides()[1] == 1) &&
         (x.dim(0) <= 1 || x.strides()[0] >= x.dim(1) || x.numel() == 0);
}

// Blocks of the output, each by one thread from start to end.
void OwnMatmul(const Device& device, const MatmulProblem& whole, void (*loop)(const GemmArgs&)) {
  const internal::GemmLoops& loops = *internal::LoopsOf(device).gemm;
  const int64_t block_rows = (whole.m + loops.block_m - 1) / loops.block_m;
  const int64_t block_cols = (whole.n + loops.block_n - 1) / loops.block_n;
  device.pool().ParallelFor(block_rows * block_cols, 1, [&](int64_t begin, int64_t end) {
    const internal::Workspace workspace(device, loops.workspace_bytes);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t i = block % block_rows * loops.block_m, j = block / block_rows * loops.block_n;
      const MatmulProblem p = whole.Rows(i, std::min(i + loops.block_m, whole.m))
                                  .Columns(j, std::min(j + loops.block_n, whole.n));
      loop({.a = p.a,
            .b = p.b,
            .c = p.out,
            .workspace = workspace.data(),
            .m = p.m,
            .n = p.n,
            .k = p.k,
            .a_row = p.a_row,
            .a_col = p.a_col,
            .b_row = p.b_row,
            .b_col = p.b_col,
            .c_row = p.out_row,
            .add = p.add});
    }
  });
}

}  // namespace

namespace internal {

MatmulProblem MatmulProblem::Rows(int64_t begin, int64_t end) const {
  MatmulProblem part = *this;
  part.a += begin * a_row * SizeOf(in_dtype);
  part.out += begin * out_row * SizeOf(out_dtype);
  part.m = end - begin;
  return part;
}

MatmulProblem MatmulProblem::Columns(int64_t begin, int64_t end) const {
  MatmulProblem part = *this;
  part.b += begin * b_col * SizeOf(in_dtype);
  part.out += begin * SizeOf(out_dtype);
  part.n = end - begin;
  return part;
}

}  // namespace internal

void Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& out,
            Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Matmul(a, transpose_a, b, transpose_b, out, write);
  }
  SHERD_CHECK(a.rank() == 2 && b.rank() == 2 && out.rank() == 2, "matmul takes matrices");
  if (!HasRows(a) || !HasRows(b)) {
    // A matrix of adjacent columns is its transpose, taken transposed; others are copied.
    const Tensor x = PackMatrix(a), y = PackMatrix(b);
    const bool turn_x = !HasRows(x), turn_y = !HasRows(y);
    return Matmul(turn_x ? x.Transpose(0, 1) : x, transpose_a != turn_x,
                  turn_y ? y.Transpose(0, 1) : y, transpose_b != turn_y, out, write);
  }
  SHERD_CHECK(HasRows(out), "the rows of the output of matmul are not adjacent elements");
  const DType dtype = a.dtype();
  SHERD_CHECK(IsFloating(dtype) && b.dtype() == dtype &&
                  (out.dtype() == dtype || (SizeOf(dtype) == 2 && out.dtype() == DType::kF32)),
              "the dtypes of a matmul do not fit");
  MatmulProblem p = {.a = nullptr,
                     .b = nullptr,
                     .out = nullptr,
                     .in_dtype = dtype,
                     .out_dtype = out.dtype(),
                     .m = a.dim(transpose_a ? 1 : 0),
                     .n = b.dim(transpose_b ? 0 : 1),
                     .k = a.dim(transpose_a ? 0 : 1),
                     .a_row = RowStride(a),
                     .a_col = 1,
                     .b_row = RowStride(b),
                     .b_col = 1,
                     .out_row = RowStride(out),
                     .add = write == Write::kAdd};
  if (transpose_a) std::swap(p.a_row, p.a_col);
  if (transpose_b) std::swap(p.b_row, p.b_col);
  SHERD_CHECK(out.dim(0) == p.m && out.dim(1) == p.n && b.dim(transpose_b ? 1 : 0) == p.k,
              "the shapes of a matmul do not fit");
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (!p.add) Fill(out, 0.0);
    return;
  }
  p.a = internal::Address(a);
  p.b = internal::Address(b);
  p.out = internal::Address(out);
  const Device& device = out.device();
  const internal::GemmLoops& loops = *internal::LoopsOf(device).gemm;
  const bool wide_out = out.dtype() == DType::kF32;
  if (dtype == DType::kF64) {
    OwnMatmul(device, p, loops.f64);
  } else if (dtype == DType::kF16) {
    OwnMatmul(device, p, wide_out ? loops.f16_to_f32 : loops.f16);
  } else if ((dtype == DType::kBF16 && !cpu::Bf16DotIsFast()) ||
             !internal::OneDnnMatmul(device, p)) {
    SHERD_CHECK(dtype == DType::kBF16, "oneDNN has no f32 matmul");
    OwnMatmul(device, p, wide_out ? loops.bf16_to_f32 : loops.bf16);
  }
}

}  // namespace sherd::kernels
