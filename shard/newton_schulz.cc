#include "sherd/shard/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/reduce.h"

namespace sherd {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

}  // namespace

void Orthogonalize(const Tensor& x, int iterations) {
  SHERD_CHECK(x.rank() == 2 && x.is_contiguous() && ComputeDTypeOf(x.dtype()) == x.dtype(),
              "orthogonalisation of what is no contiguous matrix of f32 or f64");
  if (x.numel() == 0) return;
  const bool tall = x.dim(0) > x.dim(1);
  const int64_t k = std::min(x.dim(0), x.dim(1));
  const auto scratch = [&](const Shape& shape) {
    return Tensor::Empty(x.device(), x.dtype(), shape, MemoryCategory::kWorkspace);
  };
  const Tensor gram = scratch({k, k}), scaled = scratch({k, k}), polynomial = scratch({k, k});
  Tensor now = x, next = scratch(x.shape());
  kernels::Scale(x, 1.0 / (std::sqrt(kernels::SumSquares(x)) + 1e-7), x);
  for (int i = 0; i < iterations; ++i) {
    kernels::Matmul(now, tall, now, !tall, gram);
    kernels::Scale(gram, kC, scaled);
    kernels::Scale(gram, kB, polynomial);
    kernels::Matmul(scaled, false, gram, false, polynomial, kernels::Write::kAdd);
    kernels::Scale(now, kA, next);
    const Tensor& left = tall ? now : polynomial;
    const Tensor& right = tall ? polynomial : now;
    kernels::Matmul(left, false, right, false, next, kernels::Write::kAdd);
    std::swap(now, next);
  }
  if (now.storage() != x.storage()) kernels::Copy(now, x);
}

}  // namespace sherd
