#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/autograd/optim/optimizer.h"

namespace sherd {

class Unit;

// Steps each unit as soon as its gradients are whole, inside the last micro-batch's backward, and
// gives their memory back: a model then never holds all its gradients at once.
//
// One optimizer for each unit, and one for the parameters in none, which Finish steps. Hand it to
// the Accumulation and to Finish:
//   OptimizerInBackward optimizer(model, [](std::vector<Parameter> parameters) {
//     return std::make_unique<AdamW>(std::move(parameters));
//   });
//   Accumulation accumulation(model, {.in_backward = &optimizer});
//   optimizer.set_learning_rate(schedule(step));   // before the window
//   ... window->Finish(optimizer, schedule);
// The steps are those of the same optimizers after the backward, bit for bit. What needs all
// gradients first is refused: clipping, a loss scaler, hooks of OnWindowGradient, skipping a step
// whose norm is not finite (that is an error then, with parameters already changed).
// REQUIRES: the factory's optimizers do not communicate (Muon does).
// Ownership: made after the model is sharded; outlives the Accumulation. COLLECTIVE as the window.
class OptimizerInBackward final : public Optimizer {
 public:
  using Factory = std::function<std::unique_ptr<Optimizer>(std::vector<Parameter>)>;
  // Errors: kInvalidArgument if the factory returns null, and those of the factory. Units without
  // parameters get no optimizer.
  OptimizerInBackward(Module& model, const Factory& factory);

  // Of the windows that begin from now on.
  void set_learning_rate(double rate) { next_rate_ = rate; }

  // What is left: parameters in no unit, with the window's learning rate whatever the options say,
  // and units that StepUnit did not reach.
  void Step(const StepOptions& options) override;
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void VisitState(OptimizerStateVisitor& visitor) override;

  // For windows. A window begins: its learning rate, and no unit has been stepped.
  void BeginWindow();
  double learning_rate() const { return rate_; }
  // The unit's gradients are whole: steps its parameters and drops their gradients. Returns this
  // rank's part of the squared norm.
  double StepUnit(Unit& unit);

 private:
  struct Part {
    std::unique_ptr<Optimizer> optimizer;
    bool stepped = false;
  };
  std::map<const Unit*, Part> units_;
  std::unique_ptr<Optimizer> rest_;
  std::vector<Parameter> parameters_;
  double next_rate_ = 1e-3;
  double rate_ = 1e-3;
};

}  // namespace sherd
