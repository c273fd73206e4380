#include "sherd/runtime/kernels/internal/matmul_problem.h"

#include <utility>

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels::internal {
namespace {

int64_t RowStride(const Tensor& x) { return x.dim(0) == 1 ? x.dim(1) : x.strides()[0]; }

// Whether elements of a row are adjacent and rows do not overlap.
bool HasRows(const Tensor& x) {
  return (x.dim(1) <= 1 || x.strides()[1] == 1) &&
         (x.dim(0) <= 1 || x.strides()[0] >= x.dim(1) || x.numel() == 0);
}

// x with rows as above: as it is, turned, which flips `transpose`, or a copy.
Tensor WithRows(const Tensor& x, bool* transpose) {
  if (HasRows(x)) return x;
  const Tensor packed = PackMatrix(x);
  if (HasRows(packed)) return packed;
  *transpose = !*transpose;
  return packed.Transpose(0, 1);
}

}  // namespace

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

MatmulOperands::MatmulOperands(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                               const Tensor& out, Write write) {
  SHERD_CHECK(a.rank() == 2 && b.rank() == 2 && out.rank() == 2, "matmul takes matrices");
  const DType dtype = a.dtype();
  SHERD_CHECK(IsFloating(dtype) && b.dtype() == dtype &&
                  (out.dtype() == dtype || (SizeOf(dtype) == 2 && out.dtype() == DType::kF32)),
              "the dtypes of a matmul do not fit");
  a_ = WithRows(a, &transpose_a);
  b_ = WithRows(b, &transpose_b);
  SHERD_CHECK(HasRows(out), "the rows of the output of matmul are not adjacent elements");
  MatmulProblem& p = problem_;
  p = {.in_dtype = dtype,
       .out_dtype = out.dtype(),
       .m = a_.dim(transpose_a ? 1 : 0),
       .n = b_.dim(transpose_b ? 0 : 1),
       .k = a_.dim(transpose_a ? 0 : 1),
       .a_row = RowStride(a_),
       .a_col = 1,
       .b_row = RowStride(b_),
       .b_col = 1,
       .out_row = RowStride(out),
       .add = write == Write::kAdd};
  if (transpose_a) std::swap(p.a_row, p.a_col);
  if (transpose_b) std::swap(p.b_row, p.b_col);
  SHERD_CHECK(out.dim(0) == p.m && out.dim(1) == p.n && b_.dim(transpose_b ? 1 : 0) == p.k,
              "the shapes of a matmul do not fit");
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  p.a = Address(a_);
  p.b = Address(b_);
  p.out = Address(out);
}

bool MatmulOperands::WriteTrivial(const Tensor& out) const {
  const MatmulProblem& p = problem_;
  if (p.m != 0 && p.n != 0 && p.k != 0) return false;
  if (p.m != 0 && p.n != 0 && !p.add) Fill(out, 0.0);
  return true;
}

}  // namespace sherd::kernels::internal
