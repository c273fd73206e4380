#include "sherd/runtime/kernels/matmul.h"

#include "sherd/runtime/cuda/internal/blas.h"
#include "sherd/runtime/cuda/internal/kernels.h"

namespace sherd::cuda {

void Kernels::Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                     const Tensor& out, kernels::Write write) const {
  const kernels::internal::MatmulOperands operands(a, transpose_a, b, transpose_b, out, write);
  if (!operands.WriteTrivial(out)) MultiplyMatrices(out.device(), operands.problem());
}

}  // namespace sherd::cuda
