#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/math.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

// NaN is passed over here; it comes back with the exponentials.
template <typename T>
SHERD_INLINE Compute<T> Largest(const T* x, int64_t cols) {
  Compute<T> most = -__builtin_inff();
  _Pragma("omp simd reduction(max:most)") for (int64_t i = 0; i < cols; ++i) {
    const Compute<T> value = Widen(x[i]);
    most = value > most ? value : most;
  }
  return most;
}

template <typename T>
SHERD_INLINE Compute<T> SumOfExp(const T* x, Compute<T> most, int64_t cols) {
  Compute<T> sum = 0;
  _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < cols; ++i) {
    sum += Exp(Widen(x[i]) - most);
  }
  return sum;
}

template <typename T>
void Softmax(const internal::SoftmaxArgs& args) {
  using C = Compute<T>;
  const int64_t cols = args.cols;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const x = static_cast<const T*>(args.x) + r * args.x_stride;
    T* const out = static_cast<T*>(args.out) + r * args.out_stride;
    const C most = Largest(x, cols);
    const C scale = C(1) / SumOfExp(x, most, cols);
    SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
      Put<false>(out + i, scale * Exp(Widen(x[i]) - most));
    }
  }
}

template <typename T>
void LogSoftmax(const internal::SoftmaxArgs& args) {
  using C = Compute<T>;
  const int64_t cols = args.cols;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const x = static_cast<const T*>(args.x) + r * args.x_stride;
    T* const out = static_cast<T*>(args.out) + r * args.out_stride;
    const C most = Largest(x, cols);
    const C log_sum = static_cast<C>(__builtin_log(static_cast<double>(SumOfExp(x, most, cols))));
    // Two steps: most + log_sum would round the logarithm away where most is large.
    SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
      Put<false>(out + i, (Widen(x[i]) - most) - log_sum);
    }
  }
}

template <bool kAdd, typename T>
void SoftmaxGradRow(const T* grad, const T* y, T* grad_x, int64_t cols) {
  using C = Compute<T>;
  C dot = 0;
  _Pragma("omp simd reduction(+:dot)") for (int64_t i = 0; i < cols; ++i) {
    dot += Widen(grad[i]) * Widen(y[i]);
  }
  SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
    Put<kAdd>(grad_x + i, Widen(y[i]) * (Widen(grad[i]) - dot));
  }
}

template <bool kAdd, typename T>
void LogSoftmaxGradRow(const T* grad, const T* y, T* grad_x, int64_t cols) {
  using C = Compute<T>;
  C sum = 0;
  _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < cols; ++i) { sum += Widen(grad[i]); }
  SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
    Put<kAdd>(grad_x + i, Widen(grad[i]) - Exp(Widen(y[i])) * sum);
  }
}

template <bool kLog, typename T>
void Backward(const internal::SoftmaxBackwardArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const grad = static_cast<const T*>(args.grad) + r * args.grad_stride;
    const T* const y = static_cast<const T*>(args.y) + r * args.y_stride;
    T* const grad_x = static_cast<T*>(args.grad_x) + r * args.grad_x_stride;
    if constexpr (kLog) {
      args.add ? LogSoftmaxGradRow<true>(grad, y, grad_x, args.cols)
               : LogSoftmaxGradRow<false>(grad, y, grad_x, args.cols);
    } else {
      args.add ? SoftmaxGradRow<true>(grad, y, grad_x, args.cols)
               : SoftmaxGradRow<false>(grad, y, grad_x, args.cols);
    }
  }
}

}  // namespace

extern const internal::SoftmaxLoops kSoftmaxLoops;
const internal::SoftmaxLoops kSoftmaxLoops = {
    .softmax = SHERD_FLOATS(Softmax),
    .log_softmax = SHERD_FLOATS(LogSoftmax),
    .softmax_backward = SHERD_FLOATS(Backward, false SHERD_COMMA),
    .log_softmax_backward = SHERD_FLOATS(Backward, true SHERD_COMMA),
};

}  // namespace sherd::kernels::SHERD_ISA
