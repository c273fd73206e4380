#pragma once

#include "sherd/runtime/core/tensor.h"

namespace sherd::kernels::internal {

// A product as oneDNN and our own loops take it: op(a) [m, k], op(b) [k, n], out [m, n]; none is
// empty.
struct MatmulProblem {
  const char* a;
  const char* b;
  char* out;
  DType in_dtype, out_dtype;
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col, out_row;  // element strides of op(a), op(b), out
  bool add;

  // Rows [begin, end) of the product, or columns.
  MatmulProblem Rows(int64_t begin, int64_t end) const;
  MatmulProblem Columns(int64_t begin, int64_t end) const;
};

// Computes a problem of f32 or bf16 with oneDNN on the threads of `device`. Returns false, with
// nothing written, when oneDNN has no fast implementation for it on this processor.
bool OneDnnMatmul(const Device& device, const MatmulProblem& problem);

}  // namespace sherd::kernels::internal
