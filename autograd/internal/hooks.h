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
  std::vector<std::function<void(const Parameter&)>> on_window;       // of a parameter
};

// Runs the hooks of a variable on its whole gradient and returns what they made of it. Errors:
// those of the hooks, as sherd::Error; kInvalidArgument if one returns a tensor of another shape,
// dtype or device.
Tensor RunHooks(const Ident& ident, Tensor gradient);

// Runs the hooks that a parameter has for each backward. Errors: as above.
void RunHooks(ParameterState& parameter);

// Runs the hooks that a parameter has for each window, in the order they were added; nothing if it
// has none. For who makes windows: once in each, when the local gradient is whole. Errors: those of
// the hooks, as sherd::Error with the module path; the hooks after it do not run.
void RunWindowHooks(const Parameter& parameter);
// Whether there are any.
bool HasWindowHooks(const Parameter& parameter);

}  // namespace sherd::internal
