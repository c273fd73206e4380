#include "sherd/runtime/kernels/power.h"

#include <cmath>

#include "sherd/runtime/cuda/internal/map.h"

// Bytes moved, for elements of e bytes: Power reads e and writes e; PowerBackward reads 2e (3e
// where it adds) and writes e.
namespace sherd::cuda {
namespace {

struct PowerMap {
  using Computed = double;
  double exponent;
  __device__ void operator()(const double (&in)[1], double (&out)[1]) const {
    out[0] = std::pow(in[0], exponent);
  }
};

struct PowerBackwardMap {
  using Computed = double;
  double exponent;
  __device__ void operator()(const double (&in)[2], double (&out)[1]) const {
    out[0] = exponent == 0.0 ? 0.0 : in[0] * (exponent * std::pow(in[1], exponent - 1.0));
  }
};

}  // namespace

void Kernels::Power(const Tensor& x, double exponent, const Tensor& out) const {
  SHERD_CHECK(x.dtype() == out.dtype(), "the operands of a power differ in dtype");
  RunMap<PowerMap, 1, 1>({exponent}, {&x}, {{{&out}}});
}

void Kernels::PowerBackward(const Tensor& grad, const Tensor& x, double exponent,
                            const Tensor& grad_x, kernels::Write write) const {
  SHERD_CHECK(x.dtype() == grad.dtype() && x.dtype() == grad_x.dtype(),
              "the operands of a power differ in dtype");
  RunMap<PowerBackwardMap, 2, 1>({exponent}, {&grad, &x}, {{{&grad_x, write}}});
}

}  // namespace sherd::cuda
