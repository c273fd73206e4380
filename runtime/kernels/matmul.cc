#include "sherd/runtime/kernels/matmul.h"

#include "sherd/runtime/cpu/isa.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/onednn_matmul.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

using internal::GemmArgs;
using internal::MatmulProblem;

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

void Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& out,
            Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Matmul(a, transpose_a, b, transpose_b, out, write);
  }
  const internal::MatmulOperands operands(a, transpose_a, b, transpose_b, out, write);
  if (operands.WriteTrivial(out)) return;
  const MatmulProblem& p = operands.problem();
  const DType dtype = p.in_dtype;
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
