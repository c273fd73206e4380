#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/tensors.h"

namespace sherd::testing {

// A module of nothing but parameters, given by leaf name and shape.
class Bare : public Module {
 public:
  explicit Bare(const std::vector<std::pair<std::string, Shape>>& leaves, DType dtype) {
    for (const auto& [name, shape] : leaves) {
      RegisterParameter(name, shape, Initializer::Normal(1.0), dtype);
    }
    Initialize(*this, Device::Cpu(), 5);
  }
  Parameter operator[](size_t i) const { return own_parameters()[i]; }
};

// x in another float dtype.
inline Tensor In(DType dtype, const Tensor& x) {
  const Tensor out = Tensor::Empty(x.device(), dtype, x.shape());
  kernels::Cast(x, out);
  return out;
}

inline std::vector<double> Host(const Tensor& x) { return In(DType::kF64, x).ToHost<double>(); }

// Makes `gradient` the gradient of a parameter without host, whatever its dtype.
inline void SetGrad(const Parameter& parameter, const Tensor& gradient) {
  parameter.state().grad = gradient;
  parameter.state().has_grad = true;
}

}  // namespace sherd::testing
