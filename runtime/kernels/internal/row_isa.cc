#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/math.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

template <typename T>
void RmsNorm(const internal::RmsNormArgs& args) {
  using C = Compute<T>;
  const T* const weight = static_cast<const T*>(args.weight);
  const int64_t cols = args.cols;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const x = static_cast<const T*>(args.x) + r * args.x_stride;
    T* const out = static_cast<T*>(args.out) + r * args.out_stride;
    C sum = 0;
    _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < cols; ++i) {
      const C value = Widen(x[i]);
      sum += value * value;
    }
    const C mean = sum / static_cast<C>(cols);
    const C inv = static_cast<C>(1.0 / __builtin_sqrt(static_cast<double>(mean) + args.eps));
    static_cast<C*>(args.inv_rms)[r] = inv;
    SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
      Put<false>(out + i, Widen(x[i]) * inv * Widen(weight[i]));
    }
  }
}

template <bool kAdd, typename T>
void RmsNormGradX(const T* grad, const T* x, const T* weight, Compute<T> inv, T* grad_x,
                  int64_t cols) {
  using C = Compute<T>;
  C dot = 0;
  _Pragma("omp simd reduction(+:dot)") for (int64_t i = 0; i < cols; ++i) {
    dot += Widen(grad[i]) * Widen(weight[i]) * Widen(x[i]);
  }
  const C along = dot * inv * inv / static_cast<C>(cols);
  SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
    Put<kAdd>(grad_x + i, inv * (Widen(grad[i]) * Widen(weight[i]) - Widen(x[i]) * along));
  }
}

template <typename T>
void RmsNormBackward(const internal::RmsNormBackwardArgs& args) {
  using C = Compute<T>;
  const T* const weight = static_cast<const T*>(args.weight);
  C* const partial = static_cast<C*>(args.weight_partial);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const grad = static_cast<const T*>(args.grad) + r * args.grad_stride;
    const T* const x = static_cast<const T*>(args.x) + r * args.x_stride;
    const C inv = static_cast<const C*>(args.inv_rms)[r];
    if (partial != nullptr) {
      SHERD_SIMD for (int64_t i = 0; i < args.cols; ++i) {
        partial[i] += Widen(grad[i]) * Widen(x[i]) * inv;
      }
    }
    if (args.grad_x == nullptr) continue;
    T* const grad_x = static_cast<T*>(args.grad_x) + r * args.grad_x_stride;
    args.add_x ? RmsNormGradX<true>(grad, x, weight, inv, grad_x, args.cols)
               : RmsNormGradX<false>(grad, x, weight, inv, grad_x, args.cols);
  }
}

template <typename T>
void CrossEntropy(const internal::CrossEntropyArgs& args) {
  using C = Compute<T>;
  constexpr C kNone = -C(__builtin_inff());
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const x = static_cast<const T*>(args.logits) + r * args.stride;
    C most = kNone;
    _Pragma("omp simd reduction(max:most)") for (int64_t i = 0; i < args.cols; ++i) {
      const C value = Widen(x[i]);
      most = value > most ? value : most;
    }
    const C base = most == kNone ? C(0) : most;
    C sum = 0;
    _Pragma("omp simd reduction(+:sum)") for (int64_t i = 0; i < args.cols; ++i) {
      sum += Exp(Widen(x[i]) - base);
    }
    args.row_lse[r] = static_cast<double>(most) + __builtin_log(static_cast<double>(sum));
    const int64_t target = args.targets[r] - args.first;
    if (args.targets[r] >= 0 && target >= 0 && target < args.cols) {
      args.target_logit[r] = static_cast<double>(Widen(x[target]));
    }
    if (args.logit_sum == nullptr) continue;
    double total = 0;
    _Pragma("omp simd reduction(+:total)") for (int64_t i = 0; i < args.cols; ++i) {
      total += static_cast<double>(Widen(x[i]));
    }
    args.logit_sum[r] = total;
  }
}

// grad (+)= scale (slope softmax - on_all), and less on_target at the target.
template <typename C>
struct GradRow {
  C lse, scale, slope, on_target, on_all;
};

template <bool kAdd, typename T>
void CrossEntropyGradRow(const T* x, const GradRow<Compute<T>>& row, int64_t target, T* grad,
                         int64_t cols) {
  using C = Compute<T>;
  // The target's element is put aside: it may be overwritten, and is computed once more at the end.
  const bool here = target >= 0 && target < cols;
  const C logit = here ? Widen(x[target]) : C(0);
  const T before = here ? grad[target] : T();
  const C lse = row.lse, scale = row.scale, slope = row.slope, on_all = row.on_all;
  SHERD_SIMD for (int64_t i = 0; i < cols; ++i) {
    Put<kAdd>(grad + i, scale * (slope * Exp(Widen(x[i]) - lse) - on_all));
  }
  if (!here) return;
  grad[target] = before;
  Put<kAdd>(grad + target, scale * (slope * Exp(logit - lse) - on_all - row.on_target));
}

template <typename T>
void CrossEntropyBackward(const internal::CrossEntropyArgs& args) {
  using C = Compute<T>;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const x = static_cast<const T*>(args.logits) + r * args.stride;
    T* const grad = static_cast<T*>(args.grad) + r * args.grad_stride;
    if (args.targets[r] < 0) {
      if (!args.add) __builtin_memset(grad, 0, static_cast<uint64_t>(args.cols) * sizeof(T));
      continue;
    }
    const C lse = static_cast<const C*>(args.lse)[r];
    const GradRow<C> row = {lse, static_cast<C>(args.scale),
                            C(1) + static_cast<C>(args.z_slope) * lse,
                            static_cast<C>(args.on_target), static_cast<C>(args.on_all)};
    const int64_t target = args.targets[r] - args.first;
    args.add ? CrossEntropyGradRow<true>(x, row, target, grad, args.cols)
             : CrossEntropyGradRow<false>(x, row, target, grad, args.cols);
  }
}

template <bool kAdd, typename T>
void RotateHead(const T* x, const Compute<T>* cos, const Compute<T>* sin, Compute<T> sign, T* out,
                int64_t half) {
  SHERD_SIMD for (int64_t i = 0; i < half; ++i) {
    const Compute<T> a = Widen(x[i]);
    const Compute<T> b = Widen(x[i + half]);
    const Compute<T> s = sign * sin[i];
    Put<kAdd>(out + i, a * cos[i] - b * s);
    Put<kAdd>(out + i + half, b * cos[i] + a * s);
  }
}

template <typename T>
void Rope(const internal::RopeArgs& args) {
  using C = Compute<T>;
  const C sign = args.inverse ? C(-1) : C(1);
  const C* const cos = static_cast<const C*>(args.cos);
  const C* const sin = static_cast<const C*>(args.sin);
  for (int64_t h = 0; h < args.heads; ++h) {
    const T* const x = static_cast<const T*>(args.x) + h * args.x_stride;
    T* const out = static_cast<T*>(args.out) + h * args.out_stride;
    args.add ? RotateHead<true>(x, cos, sin, sign, out, args.half)
             : RotateHead<false>(x, cos, sin, sign, out, args.half);
  }
}

}  // namespace

extern const internal::RowLoops kRowLoops;
const internal::RowLoops kRowLoops = {
    .rms_norm = SHERD_FLOATS(RmsNorm),
    .rms_norm_backward = SHERD_FLOATS(RmsNormBackward),
    .cross_entropy = SHERD_FLOATS(CrossEntropy),
    .cross_entropy_backward = SHERD_FLOATS(CrossEntropyBackward),
    .rope = SHERD_FLOATS(Rope),
};

}  // namespace sherd::kernels::SHERD_ISA
