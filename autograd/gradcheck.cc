#include "sherd/autograd/gradcheck.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/random.h"

namespace sherd {
namespace {

double Project(const Tensor& value, const std::vector<double>& direction) {
  const std::vector<double> elements = value.ToHost<double>();
  double sum = 0.0;
  for (size_t i = 0; i < elements.size(); ++i) sum += elements[i] * direction[i];
  return sum;
}

}  // namespace

GradCheckResult GradCheck(const std::function<Variable(std::span<const Variable>)>& function,
                          std::span<const Tensor> inputs, GradCheckOptions options) {
  std::vector<Variable> leaves;
  for (const Tensor& input : inputs) {
    if (input.dtype() != DType::kF64 || !input.is_contiguous()) {
      ThrowInvalidArgument("inputs are contiguous f64 tensors, got " + input.ToString(),
                           {.op = "gradcheck"});
    }
    leaves.push_back(Variable::Leaf(input));
  }
  Tape tape;
  Variable result;
  {
    const Recording on(tape);
    result = function(leaves);
  }
  const Tensor seed = Tensor::Empty(result.value().device(), DType::kF64, result.shape());
  kernels::FillNormal(seed, options.seed, 0, 0.0, 1.0);
  const std::vector<double> direction = seed.ToHost<double>();
  tape.Backward({&result, 1}, {&seed, 1});

  GradCheckResult worst;
  for (size_t k = 0; k < leaves.size(); ++k) {
    const Tensor grad = leaves[k].grad();
    double* x = inputs[k].data<double>();
    for (int64_t i = 0; i < inputs[k].numel(); ++i) {
      const double analytic = grad.defined() ? grad.data<double>()[i] : 0.0;
      const double kept = x[i];
      x[i] = kept + options.step;
      const double above = Project(function(leaves).value(), direction);
      x[i] = kept - options.step;
      const double below = Project(function(leaves).value(), direction);
      x[i] = kept;
      const double numeric = (above - below) / (2.0 * options.step);
      const double error = std::abs(analytic - numeric) / (std::abs(numeric) + 1.0);
      if (!(error <= worst.worst_error)) {
        worst.worst_error = error;
        worst.worst = absl::StrCat("input ", k, ", element ", i, ": analytic ", analytic,
                                   ", numeric ", numeric);
      }
    }
  }
  return worst;
}

}  // namespace sherd
