#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sherd/autograd/optim/optimizer.h"

namespace sherd {

namespace internal {
class OptimizerPieces;
}  // namespace internal

struct AdamWOptions {
  // For callers without a schedule of their own; Step takes the rate to use.
  double learning_rate = 1e-3;
  // Decay of the mean gradient and of the mean squared gradient. 0.95 for beta2 forgets sooner,
  // which language models like.
  double beta1 = 0.9;
  double beta2 = 0.999;
  // Added to the root of the second moment, so that tiny gradients do not make full steps.
  double eps = 1e-8;
  // Decoupled; applied to parameters of two or more dimensions, as is usual for norms and biases.
  double weight_decay = 0.01;
  // What both moments are kept in. Unset: the parameter's dtype. bf16 halves their memory beside
  // f32 parameters; of 16-bit parameters f32 keeps small changes that bf16 rounds away.
  std::optional<DType> moment_dtype = std::nullopt;
  // Parameters with a rate or decay of their own.
  std::vector<ParameterGroup> groups = {};
};

// AdamW on the pieces a rank owns. Moments live beside its local pieces; the update is computed in
// f32 (f64 for f64) and rounded once, whatever the dtypes of parameter, gradient and moments.
//
// Pieces that lie one after another in memory, as those of a sharded unit do, are updated by one
// kernel. State: "m", "v" and "step" of each parameter.
// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
class AdamW : public Optimizer {
 public:
  // Errors: kInvalidArgument for no parameters, a number outside its range, or a group that matches
  // no parameter, naming it. REQUIRES: the parameters stay what they are: shard the model first.
  explicit AdamW(std::vector<Parameter> parameters, AdamWOptions options = {});
  ~AdamW() override;

  // Cost: a pass over 7 streams of the local bytes; no heap allocation from the second step on.
  void Step(const StepOptions& options) override;
  const std::vector<Parameter>& parameters() const override;
  void VisitState(OptimizerStateVisitor& visitor) override;
  // As given.
  const AdamWOptions& options() const { return options_; }

 private:
  const AdamWOptions options_;
  const std::unique_ptr<internal::OptimizerPieces> pieces_;
};

}  // namespace sherd
