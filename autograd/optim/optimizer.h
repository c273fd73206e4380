#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sherd/autograd/parameter.h"

namespace sherd {

// What a window tells an optimizer about one step.
struct StepOptions {
  double learning_rate = 0.0;
  // Multiplies every gradient first: the clipping coefficient, and one over a loss scale.
  double grad_scale = 1.0;
};

// Parameters that take another step than the rest. The first group of an optimizer that matches a
// parameter has it; what no group matches takes the optimizer's own options.
//
// A group asks for name, shape and dtype of whole parameters, which sharding leaves as they were:
// the same parameters are in it with any number of ranks.
struct ParameterGroup {
  // For messages.
  std::string name;
  // Whether a parameter belongs here. Called once for each parameter, when the optimizer is made.
  std::function<bool(const Parameter&)> matches;
  // Multiplies the learning rate of every step.
  double lr_scale = 1.0;
  // Decay of all its parameters. Unset: the optimizer's, with the optimizer's rule of which
  // parameters decay.
  std::optional<double> weight_decay = std::nullopt;
};

// Matches parameters whose full name contains `part`: NameContains("embed").
std::function<bool(const Parameter&)> NameContains(std::string part);

// Sees what an optimizer remembers of each parameter; see Optimizer::VisitState.
class OptimizerStateVisitor {
 public:
  virtual ~OptimizerStateVisitor() = default;
  // `local` is 1-D and lies beside parameter.local(): its element i belongs to element i of that,
  // so it is cut over ranks as the parameter is; perhaps empty. Writing to it sets the state.
  // Ownership: of the optimizer; a handle that is kept sees later steps.
  virtual void OnTensor(const Parameter& parameter, std::string_view name, const Tensor& local) = 0;
  // A number that is the same on all ranks. Writing to it sets the state.
  virtual void OnCount(const Parameter& parameter, std::string_view name, int64_t& count) = 0;
};

// Changes the local pieces of parameters from their gradients. The interface windows use.
//
// Threads: the thread that runs the model.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every parameter that has a gradient and raises its version; the others, and all
  // gradients, stay as they are. No communication, unless the optimizer says so.
  virtual void Step(const StepOptions& options) = 0;
  // Those it was given, frozen ones included.
  virtual const std::vector<Parameter>& parameters() const = 0;
  // Shows the state of every trainable parameter, in the order of parameters(), the same names on
  // all ranks: for saving it, and for setting it before the next step.
  // Cost: state that no step has made yet is made here, as zeros. No communication.
  // Errors: kFailedPrecondition for a parameter without memory, and from an optimizer that does not
  //   define this.
  virtual void VisitState(OptimizerStateVisitor& visitor);
};

}  // namespace sherd
