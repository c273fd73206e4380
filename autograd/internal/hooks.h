#pragma once

#include <functional>
#include <vector>

#include "sherd/autograd/parameter.h"
#include "sherd/autograd/variable.h"

namespace sherd::internal {

// What users attached to one identity.
struct Hooks {
  std::vector<std::function<Tensor(const Tensor&)>> on_gradient;      // of a variable
  std::vector<std::function<void(const Parameter&)>> on_accumulated;  // of a parameter
};

// Runs the hooks of a variable on its whole gradient and returns what they made of it. Errors:
// those of the hooks, as sherd::Error; kInvalidArgument if one returns a tensor of another shape,
// dtype or device.
Tensor RunHooks(const Ident& ident, Tensor gradient);

// Runs the hooks of a parameter. Errors: as above.
void RunHooks(ParameterState& parameter);

}  // namespace sherd::internal
