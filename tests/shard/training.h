#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/comm/delayed_group.h"
#include "sherd/runtime/comm/forwarding_group.h"
#include "tests/shard/model.h"

namespace sherd::testing {

// Ten steps of a model, on one plain rank and sharded over several.
//
// A step takes fresh inputs on every rank; the sum of the ranks' losses is what is trained, by
// AdamW.
template <typename M>
struct Recipe {
  std::function<std::unique_ptr<M>()> make = [] { return std::make_unique<M>(); };
  std::function<void(M&, const Mesh&)> shard;
  // What one rank adds to the loss of a step. REQUIRES: at least one recorded op of a parameter.
  std::function<Variable(M&, const Device&, int rank, int step)> loss;
  // On sharded ranks, instead of one backward of `loss`: leaves the gradients of a step and returns
  // the rank's loss.
  std::function<double(M&, Tape&, const Device&, int rank, int step)> run;
  // On sharded ranks only, before a step's forward and after its backward.
  std::function<void(M&, int step)> before_step = [](M&, int) {};
  std::function<void(M&, int step)> after_backward = [](M&, int) {};
  int inside = 0;  // ranks along the shard axis; 0: all
  int steps = 10;
};

struct Trained {
  std::vector<double> losses;    // of all ranks together, one for each step
  std::vector<Whole> gradients;  // summed over ranks, of each step
  Whole values;                  // after the last step
};

inline constexpr double kTrainingRate = 1e-2;

inline double ScalarOf(const Variable& loss) { return loss.value().ToHost<double>()[0]; }

inline void StepAndClear(AdamW& optimizer) {
  optimizer.Step({.learning_rate = kTrainingRate});
  for (const Parameter& parameter : optimizer.parameters()) parameter.ClearGrad();
}

// The unsharded model on one rank, which takes the inputs of all ranks in turn.
template <typename M>
Trained TrainPlain(const Recipe<M>& recipe, int ranks) {
  const Device device = Device::Cpu();
  const std::unique_ptr<M> model = recipe.make();
  Initialize(*model, device, 1);
  AdamW optimizer(model->parameters());
  Tape tape;
  Trained trained;
  for (int step = 0; step < recipe.steps; ++step) {
    double sum = 0.0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Recording on(tape);
      const Variable loss = recipe.loss(*model, device, rank, step);
      tape.Backward(loss);
      sum += ScalarOf(loss);
      tape.Reset();
    }
    trained.losses.push_back(sum);
    trained.gradients.push_back(GradientsOf(*model, nullptr));
    StepAndClear(optimizer);
  }
  trained.values = ValuesOf(*model, nullptr);
  return trained;
}

// The same sharded, as one rank sees it.
template <typename M>
Trained TrainSharded(const Recipe<M>& recipe, World& world) {
  const std::unique_ptr<M> model = recipe.make();
  recipe.shard(*model, recipe.inside == 0 ? world.mesh() : world.MakeMesh(recipe.inside));
  Initialize(*model, world.device(), 1);
  PoisonFreeMemory(world.device());
  AdamW optimizer(model->parameters());
  Tape tape;
  Trained trained;
  for (int step = 0; step < recipe.steps; ++step) {
    recipe.before_step(*model, step);
    double sum = 0.0;
    if (recipe.run) {
      sum = recipe.run(*model, tape, world.device(), world.rank(), step);
    } else {
      const Recording on(tape);
      const Variable loss = recipe.loss(*model, world.device(), world.rank(), step);
      tape.Backward(loss);
      sum = ScalarOf(loss);
    }
    tape.Reset();
    recipe.after_backward(*model, step);
    trained.gradients.push_back(GradientsOf(*model, &world.group()));
    StepAndClear(optimizer);
    world.group().AllReduce(&sum, 1, DType::kF64);
    trained.losses.push_back(sum);
  }
  trained.values = ValuesOf(*model, &world.group());
  return trained;
}

inline void ExpectSameTraining(const Trained& got, const Trained& want, double tolerance = 1e-11) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t step = 0; step < want.losses.size(); ++step) {
    EXPECT_LE(std::abs(got.losses[step] - want.losses[step]),
              tolerance * std::abs(want.losses[step]))
        << "the loss of step " << step;
    SCOPED_TRACE(absl::StrCat("the gradients of step ", step));
    ExpectClose(got.gradients[step], want.gradients[step], tolerance);
  }
  // So that a loss that does not depend on the training cannot agree by chance.
  EXPECT_NE(want.losses.front(), want.losses.back());
  ExpectClose(got.values, want.values, tolerance);
}

// Expects the losses and gradients of every step and the last values of all parameters to be the
// plain ones.
template <typename M>
void ExpectTrains(int ranks, const Recipe<M>& recipe, const RankOptions& options = {}) {
  SCOPED_TRACE(ranks);
  const Trained want = TrainPlain(recipe, ranks);
  RunRanks(
      ranks, [&](World& world) { ExpectSameTraining(TrainSharded(recipe, world), want); }, options);
}

// Delays the collectives of the forks whose name contains `part`, and no others.
class PartlyDelayedGroup final : public ForwardingGroup {
 public:
  PartlyDelayedGroup(std::shared_ptr<ProcessGroup> inner, std::string part, DelayOptions options)
      : ForwardingGroup(std::move(inner)), part_(std::move(part)), options_(options) {}

 protected:
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string& name) override {
    std::shared_ptr<ProcessGroup> shared = std::move(inner);
    if (name.find(part_) != std::string::npos) return MakeDelayedGroup(shared, options_);
    return std::make_unique<PartlyDelayedGroup>(shared, part_, options_);
  }

 private:
  const std::string part_;
  const DelayOptions options_;
};

// Ranks whose gathers ("gather"), reductions ("reduce") or everything ("") come late at random.
inline RankOptions Delayed(const std::string& part, absl::Duration most) {
  RankOptions options;
  options.wrap_group =
      [part, most](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return std::make_shared<PartlyDelayedGroup>(std::move(group), part,
                                                DelayOptions{.max_delay = most});
  };
  return options;
}

}  // namespace sherd::testing
