#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/parameter.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd::testing {

// Holds parameters whose values ops read in one dtype and whose gradients are kept in another, as a
// unit with mixed precision does. What is not written stays NaN.
class WideHost : public ParameterHost {
 public:
  explicit WideHost(DType grad_dtype) : grad_dtype_(grad_dtype) {}

  // A new parameter that ops read as `value`, called `name`.
  Parameter Add(const Tensor& value, std::string name = "weight") {
    Ref<internal::ParameterState> state = MakeRef<internal::ParameterState>();
    state->is_parameter = true;
    state->leaf_name = std::move(name);
    state->shape = value.shape();
    state->dtype = grad_dtype_;
    state->value = value;
    return Take(Parameter(state));
  }
  // Takes over a parameter that has values: ops read them rounded to `rounded`, as `dtype`.
  void Adopt(const Parameter& parameter, DType rounded, DType dtype) {
    const auto cast = [](const Tensor& from, DType to) {
      const Tensor result = Tensor::Empty(from.device(), to, from.shape());
      kernels::Cast(from, result);
      return result;
    };
    parameter.state().value = cast(cast(parameter.state().value, rounded), dtype);
    Take(parameter);
  }
  // The sum of all contributions; undefined if there were none.
  Tensor grad(const Parameter& parameter) const {
    const Grad& grad = grads_[static_cast<size_t>(parameter.state().host_index)];
    return grad.contributions == 0 ? Tensor() : grad.sum;
  }
  int contributions(const Parameter& parameter) const {
    return grads_[static_cast<size_t>(parameter.state().host_index)].contributions;
  }

  void CheckRead(int) const override {}
  GradTarget TakeGradTarget(int index) override {
    Grad& grad = grads_[static_cast<size_t>(index)];
    const bool first = grad.contributions++ == 0;
    return {grad.sum, first ? kernels::Write::kOverwrite : kernels::Write::kAdd};
  }
  Tensor LocalGrad(int index) const override { return grads_[static_cast<size_t>(index)].sum; }
  void ClearGrad(int index) override { grads_[static_cast<size_t>(index)].contributions = 0; }
  void AwaitReaders(int) override {}
  bool InBackward(int) const override { return false; }

 private:
  struct Grad {
    Tensor sum;
    int contributions = 0;
  };
  Parameter Take(const Parameter& parameter) {
    internal::ParameterState& state = parameter.state();
    state.host = this;
    state.host_index = static_cast<int>(grads_.size());
    grads_.push_back({Tensor::Empty(state.value.device(), grad_dtype_, state.shape), 0});
    kernels::Fill(grads_.back().sum, std::nan(""));
    return parameter;
  }
  DType grad_dtype_;
  std::vector<Grad> grads_;
};

}  // namespace sherd::testing
