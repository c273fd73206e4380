#include "sherd/runtime/kernels/l2_normalize.h"

#include <cmath>

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/floats.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::FromDouble;
using internal::RowView;
using internal::ToDouble;

void CheckNorms(const Tensor& x, const Tensor& norms) {
  SHERD_CHECK(norms.dtype() == internal::ComputeDType(x.dtype()) && norms.is_contiguous() &&
                  norms.numel() == x.shape().rows(),
              "the norms do not fit their rows");
}

double NormAt(const Tensor& norms, int64_t row) {
  return norms.dtype() == DType::kF64 ? norms.data<double>()[row]
                                      : static_cast<double>(norms.data<float>()[row]);
}

}  // namespace

void L2Normalize(const Tensor& x, double eps, const Tensor& out, const Tensor& norms) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->L2Normalize(x, eps, out, norms);
  }
  CheckNorms(x, norms);
  SHERD_CHECK(out.dtype() == x.dtype() && out.shape() == x.shape(),
              "the output of a normalisation does not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed = PackRows(x);
  const RowView from = internal::RowsOf(packed), to = internal::RowsOf(out);
  internal::WithFloatType(x.dtype(), [&]<typename T>(T) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const row = reinterpret_cast<const T*>(from.row(r));
        T* const result = reinterpret_cast<T*>(to.row(r));
        double squares = 0.0;
        for (int64_t c = 0; c < from.cols; ++c) squares += ToDouble(row[c]) * ToDouble(row[c]);
        const double norm = std::sqrt(squares);
        const double scale = 1.0 / std::max(norm, eps);
        for (int64_t c = 0; c < from.cols; ++c) result[c] = FromDouble<T>(ToDouble(row[c]) * scale);
        if (norms.dtype() == DType::kF64) {
          norms.data<double>()[r] = norm;
        } else {
          norms.data<float>()[r] = static_cast<float>(norm);
        }
      }
    };
    x.device().pool().ParallelFor(from.rows, internal::GrainOf(from.cols), run);
  });
}

void L2NormalizeBackward(const Tensor& grad, const Tensor& x, const Tensor& norms, double eps,
                         const Tensor& grad_x, Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->L2NormalizeBackward(grad, x, norms, eps, grad_x, write);
  }
  CheckNorms(x, norms);
  SHERD_CHECK(grad.dtype() == x.dtype() && grad.shape() == x.shape() &&
                  grad_x.dtype() == x.dtype() && grad_x.shape() == x.shape(),
              "the gradients of a normalisation do not fit its input");
  if (x.numel() == 0) return;
  const Tensor packed_grad = PackRows(grad), packed_x = PackRows(x);
  const RowView from = internal::RowsOf(packed_x), from_grad = internal::RowsOf(packed_grad);
  const RowView to = internal::RowsOf(grad_x);
  const bool add = write == Write::kAdd;
  internal::WithFloatType(x.dtype(), [&]<typename T>(T) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const row = reinterpret_cast<const T*>(from.row(r));
        const T* const g = reinterpret_cast<const T*>(from_grad.row(r));
        T* const result = reinterpret_cast<T*>(to.row(r));
        const double norm = NormAt(norms, r);
        const double scale = 1.0 / std::max(norm, eps);
        double dot = 0.0;
        for (int64_t c = 0; c < from.cols && norm > eps; ++c) {
          dot += ToDouble(g[c]) * ToDouble(row[c]) * scale;
        }
        for (int64_t c = 0; c < from.cols; ++c) {
          const double value = (ToDouble(g[c]) - ToDouble(row[c]) * scale * dot) * scale;
          result[c] = FromDouble<T>(add ? ToDouble(result[c]) + value : value);
        }
      }
    };
    x.device().pool().ParallelFor(from.rows, internal::GrainOf(from.cols), run);
  });
}

}  // namespace sherd::kernels
