#include "sherd/runtime/kernels/random.h"

#include <array>

#include "sherd/runtime/core/random.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

constexpr int64_t kGrain = 1024;

// Sets element i of `out` to value(first_element + i), rounded.
template <typename F>
void FillWith(const Tensor& out, int64_t first_element, const F& value) {
  SHERD_CHECK(out.is_contiguous(), "random values fill contiguous pieces");
  SHERD_CHECK(first_element >= 0, "the first element of a random fill is negative");
  if (out.numel() == 0) return;
  const auto fill = [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    out.device().pool().ParallelFor(out.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double x = value(static_cast<uint64_t>(first_element + i));
        if constexpr (std::is_same_v<T, double>) {
          to[i] = x;
        } else {
          to[i] = T(static_cast<float>(x));
        }
      }
    });
  };
  switch (out.dtype()) {
    case DType::kF32:
      return fill(out.data<float>());
    case DType::kF64:
      return fill(out.data<double>());
    case DType::kBF16:
      return fill(out.data<BFloat16>());
    case DType::kF16:
      return fill(out.data<Float16>());
    default:
      SHERD_CHECK(false, "random values are floats");
  }
}

}  // namespace

void FillNormal(const Tensor& out, uint64_t key, int64_t first_element, double mean,
                double stddev) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->FillNormal(out, key, first_element, mean, stddev);
  }
  FillWith(out, first_element, [=](uint64_t e) {
    const std::array<uint32_t, 4> words = Philox4x32(key, e / 2, 0);
    return mean + stddev * Normal(words[2 * (e % 2)], words[2 * (e % 2) + 1]);
  });
}

void FillUniform(const Tensor& out, uint64_t key, int64_t first_element, double low, double high) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->FillUniform(out, key, first_element, low, high);
  }
  FillWith(out, first_element, [=](uint64_t e) {
    return low + (high - low) * UniformOpen(Philox4x32(key, e / 4, 0)[e % 4]);
  });
}

}  // namespace sherd::kernels
