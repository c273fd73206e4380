#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels::internal {

// A product as libraries and our own loops take it: op(a) [m, k], op(b) [k, n], out [m, n].
//
// Elements of op(a) are adjacent along one of its dimensions, those of op(b) too; those of a row of
// out are.
struct MatmulProblem {
  const char* a = nullptr;
  const char* b = nullptr;
  char* out = nullptr;
  DType in_dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row = 0, a_col = 0, b_row = 0, b_col = 0, out_row = 0;  // strides of op(a), op(b), out
  bool add = false;

  // Rows [begin, end) of the product, or columns.
  MatmulProblem Rows(int64_t begin, int64_t end) const;
  MatmulProblem Columns(int64_t begin, int64_t end) const;
};

// The problem of a call of Matmul, and the copies of operands that cannot be read in place.
//
// Ownership: the problem's addresses are valid while this and the tensors live.
class MatmulOperands {
 public:
  // Checks what matmul.h requires.
  MatmulOperands(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                 const Tensor& out, Write write);

  const MatmulProblem& problem() const { return problem_; }
  // Writes the output where nothing is to be multiplied, because one of m, n and k is 0; returns
  // whether that was so.
  bool WriteTrivial(const Tensor& out) const;

 private:
  Tensor a_, b_;
  MatmulProblem problem_;
};

}  // namespace sherd::kernels::internal
