#include "sherd/runtime/kernels/power.h"

#include <cmath>

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/floats.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {

using internal::FromDouble;
using internal::ToDouble;

void Power(const Tensor& x, double exponent, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Power(x, exponent, out);
  }
  SHERD_CHECK(x.dtype() == out.dtype(), "the operands of a power differ in dtype");
  internal::WithFloatType(x.dtype(), [&]<typename T>(T) {
    internal::RunLoop<2>({&x, &out}).ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
      const T* const from = reinterpret_cast<const T*>(at[0]);
      T* const to = reinterpret_cast<T*>(at[1]);
      for (int64_t i = 0; i < n; ++i) to[i] = FromDouble<T>(std::pow(ToDouble(from[i]), exponent));
    });
  });
}

void PowerBackward(const Tensor& grad, const Tensor& x, double exponent, const Tensor& grad_x,
                   Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->PowerBackward(grad, x, exponent, grad_x, write);
  }
  SHERD_CHECK(x.dtype() == grad.dtype() && x.dtype() == grad_x.dtype(),
              "the operands of a power differ in dtype");
  const bool add = write == Write::kAdd;
  const auto body = [&]<typename T>(T) {
    const auto run = [&](const auto& at, int64_t n) {
      const T* const g = reinterpret_cast<const T*>(at[0]);
      const T* const from = reinterpret_cast<const T*>(at[1]);
      T* const to = reinterpret_cast<T*>(at[2]);
      for (int64_t i = 0; i < n; ++i) {
        const double slope =
            exponent == 0.0 ? 0.0 : exponent * std::pow(ToDouble(from[i]), exponent - 1.0);
        const double value = exponent == 0.0 ? 0.0 : ToDouble(g[i]) * slope;
        to[i] = FromDouble<T>(add ? ToDouble(to[i]) + value : value);
      }
    };
    internal::RunLoop<3>({&grad, &x, &grad_x}).ForEach(grad_x.device().pool(), run);
  };
  internal::WithFloatType(x.dtype(), body);
}

}  // namespace sherd::kernels
