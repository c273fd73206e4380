#pragma once

#include <cmath>
#include <cstdint>

#include "sherd/autograd/parameter.h"

namespace llm {

inline constexpr double kDeviation = 0.02;

// What matrices and tables begin with.
inline sherd::Initializer Usual() { return sherd::Initializer::Normal(kDeviation); }

// What matrices begin with that lead back into the residual stream: smaller, so that its size does
// not grow with depth. Source: Radford et al. 2019.
inline sherd::Initializer IntoResidual(int64_t layers) {
  return sherd::Initializer::Normal(kDeviation / std::sqrt(2.0 * static_cast<double>(layers)));
}

}  // namespace llm
