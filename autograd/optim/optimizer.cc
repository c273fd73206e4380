#include "sherd/autograd/optim/optimizer.h"

#include <utility>

#include "sherd/runtime/base/error.h"

namespace sherd {

std::function<bool(const Parameter&)> NameContains(std::string part) {
  return [part = std::move(part)](const Parameter& parameter) {
    return parameter.name().find(part) != std::string::npos;
  };
}

// Better than a saved state that lacks what the optimizer remembers.
void Optimizer::VisitState(OptimizerStateVisitor&) {
  ThrowFailedPrecondition("this optimizer does not show its state: define VisitState");
}

}  // namespace sherd
