#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

template <typename T>
void Forward(const internal::LayerNormArgs& args) {
  using C = Compute<T>;
  const T* const weight = static_cast<const T*>(args.weight);
  const T* const bias = static_cast<const T*>(args.bias);
  const int64_t cols = args.cols;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const x = static_cast<const T*>(args.x) + r * args.x_stride;
    T* const out = static_cast<T*>(args.out) + r * args.out_stride;
    C sum = 0;
    _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < cols; ++i) sum += Widen(x[i]);
    const C mean = sum / static_cast<C>(cols);
    C squares = 0;
    _Pragma("omp simd reduction(+:squares)") for (int64_t i = 0; i < cols; ++i) {
      const C away = Widen(x[i]) - mean;
      squares += away * away;
    }
    const C variance = squares / static_cast<C>(cols);
    const C inv = static_cast<C>(1.0 / __builtin_sqrt(static_cast<double>(variance) + args.eps));
    static_cast<C*>(args.mean)[r] = mean;
    static_cast<C*>(args.inv_std)[r] = inv;
    SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
      Put<false>(out + i, (Widen(x[i]) - mean) * inv * Widen(weight[i]) + Widen(bias[i]));
    }
  }
}

template <bool kAdd, typename T>
void GradX(const T* grad, const T* x, const T* weight, Compute<T> mean, Compute<T> inv, T* grad_x,
           int64_t cols) {
  using C = Compute<T>;
  C sum = 0, dot = 0;
  _Pragma("omp simd reduction(+:sum, dot)") for (int64_t i = 0; i < cols; ++i) {
    const C g = Widen(grad[i]) * Widen(weight[i]);
    sum += g;
    dot += g * (Widen(x[i]) - mean);
  }
  const C level = sum / static_cast<C>(cols);
  const C along = dot * inv * inv / static_cast<C>(cols);
  SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
    const C g = Widen(grad[i]) * Widen(weight[i]);
    Put<kAdd>(grad_x + i, inv * (g - level - (Widen(x[i]) - mean) * along));
  }
}

template <typename T>
void Backward(const internal::LayerNormBackwardArgs& args) {
  using C = Compute<T>;
  const T* const weight = static_cast<const T*>(args.weight);
  C* const to_weight = static_cast<C*>(args.weight_partial);
  C* const to_bias = static_cast<C*>(args.bias_partial);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const grad = static_cast<const T*>(args.grad) + r * args.grad_stride;
    const T* const x = static_cast<const T*>(args.x) + r * args.x_stride;
    const C mean = static_cast<const C*>(args.mean)[r];
    const C inv = static_cast<const C*>(args.inv_std)[r];
    if (to_weight != nullptr) {
      SHERD_SIMD for (int64_t i = 0; i < args.cols; ++i) {
        to_weight[i] += Widen(grad[i]) * ((Widen(x[i]) - mean) * inv);
      }
    }
    if (to_bias != nullptr) {
      SHERD_SIMD for (int64_t i = 0; i < args.cols; ++i) to_bias[i] += Widen(grad[i]);
    }
    if (args.grad_x == nullptr) continue;
    T* const grad_x = static_cast<T*>(args.grad_x) + r * args.grad_x_stride;
    args.add_x ? GradX<true>(grad, x, weight, mean, inv, grad_x, args.cols)
               : GradX<false>(grad, x, weight, mean, inv, grad_x, args.cols);
  }
}

}  // namespace

extern const internal::LayerNormLoops kLayerNormLoops;
const internal::LayerNormLoops kLayerNormLoops = {
    .forward = SHERD_FLOATS(Forward),
    .backward = SHERD_FLOATS(Backward),
};

}  // namespace sherd::kernels::SHERD_ISA
