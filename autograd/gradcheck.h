#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sherd/autograd/variable.h"

namespace sherd {

struct GradCheckOptions {
  double step = 1e-5;  // of the central difference
  uint64_t seed = 1;   // of the random projection
};

struct GradCheckResult {
  // Largest |analytic - numeric| / (|numeric| + 1) over all elements of all inputs.
  double worst_error = 0.0;
  std::string worst;  // "input 1, element 7: analytic 0.25, numeric 0.26"
};

// Compares the gradients of `function` with central differences of its values, in f64.
//
// Projects the result on a random vector, so that any shape of result is checked at once. Every
// element of every input is moved, so keep them small. The truncation error is of order step
// squared: with the default, right gradients of smooth functions give worst errors near 1e-9.
// Shapes: inputs f64, contiguous; `function` maps variables of those shapes to one f64 variable.
// Cost: two forwards for each input element.
GradCheckResult GradCheck(const std::function<Variable(std::span<const Variable>)>& function,
                          std::span<const Tensor> inputs, GradCheckOptions options = {});

}  // namespace sherd
