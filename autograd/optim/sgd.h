#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sherd/autograd/optim/optimizer.h"

namespace sherd {

namespace internal {
class OptimizerPieces;
}  // namespace internal

struct SgdOptions {
  // For callers without a schedule of their own; Step takes the rate to use.
  double learning_rate = 1e-2;
  // Decay of the running sum of gradients. 0: none is kept, which costs no memory.
  double momentum = 0.0;
  // Takes this share off every gradient but the first before it enters the momentum.
  double dampening = 0.0;
  // Added to the gradient, so that it enters the momentum too. Unlike PyTorch's it leaves
  // parameters of one dimension alone; a group that matches all of them decays them too.
  double weight_decay = 0.0;
  // Steps along the gradient plus the momentum it leads to. Needs a momentum and no dampening.
  bool nesterov = false;
  // What the momentum is kept in. Unset: the parameter's dtype.
  std::optional<DType> moment_dtype = std::nullopt;
  // Parameters with a rate or decay of their own.
  std::vector<ParameterGroup> groups = {};
};

// Stochastic gradient descent with momentum on the pieces a rank owns, with the formulas of
// torch.optim.SGD. Computed in f32 (f64 for f64) and rounded once, whatever the dtypes of
// parameter, gradient and momentum; pieces that lie one after another take one kernel.
//
// State: "step" of each parameter, and "momentum" if there is one.
// Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep
// learning".
class Sgd : public Optimizer {
 public:
  // Errors: kInvalidArgument for no parameters, a number outside its range, nesterov without
  // momentum or with dampening, or a group that matches no parameter, naming it.
  // REQUIRES: the parameters stay what they are: shard the model first.
  explicit Sgd(std::vector<Parameter> parameters, SgdOptions options = {});
  ~Sgd() override;

  // Cost: a pass over 5 streams of the local bytes, 3 without momentum; no heap allocation from the
  // second step on.
  void Step(const StepOptions& options) override;
  const std::vector<Parameter>& parameters() const override;
  void VisitState(OptimizerStateVisitor& visitor) override;
  // As given.
  const SgdOptions& options() const { return options_; }

 private:
  const SgdOptions options_;
  const std::unique_ptr<internal::OptimizerPieces> pieces_;
};

}  // namespace sherd
