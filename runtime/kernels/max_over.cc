#include "sherd/runtime/kernels/max_over.h"

#include <cmath>

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/floats.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

// Lines `inner` apart that are looked at together, so that memory is read in order.
constexpr int64_t kTogether = 256;

template <typename T>
void MaxOfLines(const T* x, int64_t extent, int64_t inner, int64_t lines, T* values,
                int64_t* indices) {
  for (int64_t i = 0; i < lines; ++i) {
    values[i] = x[i];
    indices[i] = 0;
  }
  for (int64_t d = 1; d < extent; ++d) {
    for (int64_t i = 0; i < lines; ++i) {
      const double value = internal::ToDouble(x[d * inner + i]);
      const double most = internal::ToDouble(values[i]);
      if (std::isnan(most) || !(value > most || std::isnan(value))) continue;
      values[i] = x[d * inner + i];
      indices[i] = d;
    }
  }
}

}  // namespace

void MaxOver(const Tensor& x, int dim, const Tensor& values, const Tensor& indices) {
  if (const KernelBackend* const other = BackendOf(x)) {
    return other->MaxOver(x, dim, values, indices);
  }
  SHERD_CHECK(dim >= 0 && dim < x.rank() && x.dim(dim) > 0, "there is no largest of no elements");
  SHERD_CHECK(values.dtype() == x.dtype() && indices.dtype() == DType::kI64 &&
                  values.is_contiguous() && indices.is_contiguous() &&
                  values.numel() == x.numel() / x.dim(dim) && indices.numel() == values.numel(),
              "the outputs of a maximum do not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed = Pack(x);
  int64_t inner = 1;
  for (int i = dim + 1; i < x.rank(); ++i) inner *= x.dim(i);
  const int64_t outer = values.numel() / inner, extent = x.dim(dim);
  const int64_t blocks = (inner + kTogether - 1) / kTogether;
  internal::WithFloatType(x.dtype(), [&]<typename T>(T) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t o = item / blocks, first = item % blocks * kTogether;
        MaxOfLines(static_cast<const T*>(packed.raw()) + o * extent * inner + first, extent, inner,
                   std::min(kTogether, inner - first),
                   static_cast<T*>(values.raw()) + o * inner + first,
                   indices.data<int64_t>() + o * inner + first);
      }
    };
    const int64_t item_elems = extent * std::min(kTogether, inner);
    x.device().pool().ParallelFor(outer * blocks, internal::GrainOf(item_elems), run);
  });
}

}  // namespace sherd::kernels
