#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/parameter.h"

namespace sherd {

// What a window tells an optimizer about one step.
struct StepOptions {
  double learning_rate = 0.0;
  // Multiplies every gradient first: the clipping coefficient.
  double grad_scale = 1.0;
};

// Changes the local pieces of parameters from their gradients. The interface windows use.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every parameter that has a gradient and raises its version; the others, and all
  // gradients, stay as they are. No communication.
  virtual void Step(const StepOptions& options) = 0;
  virtual const std::vector<Parameter>& parameters() const = 0;
};

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
};

// AdamW on the pieces a rank owns. Moments have the parameter's dtype and live beside its local
// piece.
//
// Pieces that lie one after another in memory, as those of a sharded unit do, are updated by one
// kernel. Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
class AdamW : public Optimizer {
 public:
  // REQUIRES: the parameters stay what they are: shard the model first.
  explicit AdamW(std::vector<Parameter> parameters, AdamWOptions options = {});

  void Step(const StepOptions& options) override;
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  // As given.
  const AdamWOptions& options() const { return options_; }

 private:
  // Both moments of every piece in one storage, laid out as that storage is.
  struct Moments {
    Ref<Storage> of;  // the storage of the local pieces these belong to
    Tensor m;
    Tensor v;
  };
  // Pieces that lie one after another and take the same step.
  struct Run {
    Tensor param;  // 1-D, as are the others
    Tensor grad;
    Tensor m;
    Tensor v;
    int64_t step = 0;
    bool decays = false;
  };
  const Moments& MomentsOf(const Tensor& local);
  std::vector<Run> CollectRuns();

  std::vector<Parameter> parameters_;
  AdamWOptions options_;
  std::vector<int64_t> steps_;  // of each parameter, counted when it had a gradient
  std::vector<Moments> moments_;
};

}  // namespace sherd
