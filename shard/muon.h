#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/optimizer.h"
#include "sherd/shard/context.h"
#include "sherd/shard/muon_plan.h"

namespace sherd {

// How large a step is for a matrix of R rows and C columns; an orthogonalised update has singular
// values near 1.
enum class MuonScale : uint8_t {
  // 0.2 sqrt(max(R, C)): elements are about as large as those of an AdamW update, so one learning
  // rate serves both. Source: Liu et al. 2025, "Muon is Scalable for LLM Training".
  kMatchAdamW,
  // sqrt(max(1, R / C)), as first published; wants a learning rate near 0.02.
  kOriginal,
};

struct MuonOptions {
  double momentum = 0.95;
  // Steps along the gradient plus the momentum it leads to.
  bool nesterov = true;
  // Of Newton and Schulz; fewer are cheaper and less orthogonal.
  int iterations = 5;
  // Decoupled, of the matrices.
  double weight_decay = 0.01;
  MuonScale scale = MuonScale::kMatchAdamW;
  // What the momentum is kept in. Unset: the parameter's dtype.
  std::optional<DType> moment_dtype = std::nullopt;
  // Matrices with a rate or decay of their own.
  std::vector<ParameterGroup> groups = {};
  // Parameters of two dimensions that AdamW updates all the same: embeddings and heads, whose rows
  // are not one map. NameContains("embed"), say.
  std::function<bool(const Parameter&)> leave_to_adamw = nullptr;
  // For them and for all parameters of other than two dimensions; its groups are of these alone.
  AdamWOptions adamw = {};
  // Elements of the matrices that are handled together. More balance the ranks better and take
  // fewer messages; a rank holds its share of them, and what it sends and receives, meanwhile.
  int64_t round_elems = int64_t{1} << 25;
};

// Momentum whose update is orthogonalised, for the matrices of a model, and AdamW for the rest:
//   m = momentum m + g;  u = g + momentum m;  w = (1 - lr decay) w - lr scale Orthogonalize(u)
//
// Each matrix's update is assembled on one rank, whatever pieces it was cut into, orthogonalised
// there in f32 (f64 for f64), and sent back to those who hold the pieces, so the result does not
// depend on the number of ranks, and layouts need no padding. The momentum stays cut as the
// parameter is. Owners are balanced by elements; see muon_plan.h.
// State: "momentum" and "step" of each matrix, and AdamW's of the rest.
// Cost: bytes a rank receives in a step, W ranks: (W - 1) x the fullest slot, in 4 bytes an
//   element, once to the owners and once back. A slot holds the pieces that a rank sends: of
//   matrices that a chunk's border cuts, those not on their owner. That is at most an all-gather of
//   the matrices each way (one matrix over all ranks), and nothing for matrices that lie on their
//   owner. Also one small all-reduce in every step, and a small all-gather in the first.
// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
class Muon : public Optimizer {
 public:
  // Errors: kInvalidArgument if the model has no matrix to update, for a number outside its range,
  //   or a group that matches no parameter, naming it.
  // REQUIRES: the model is sharded already, and outlives this object.
  explicit Muon(Module& model, MuonOptions options = {});
  ~Muon() override;

  // COLLECTIVE over the ranks of the model's units, unlike other optimizers' steps. A parameter
  // that any rank has a gradient of is updated by all that hold it.
  // Errors: kFailedPrecondition after a failed step, or for a parameter outside of units that only
  //   some ranks have a gradient of, naming it; those of the collectives.
  void Step(const StepOptions& options) override;
  // All parameters of the model, the matrices first.
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void VisitState(OptimizerStateVisitor& visitor) override;
  // As given.
  const MuonOptions& options() const { return options_; }

 private:
  struct Work;
  void AgreeOnPieces();
  std::vector<int> AgreeOnUse();
  void Run(const MuonRound& round, const StepOptions& options);
  void TakeMomentum(Work& work, const StepOptions& options);
  void Gather(Work& work);
  void SendBack(Work& work);
  void Apply(const Work& work, const StepOptions& options);

  Module& model_;
  const std::shared_ptr<ShardContext> context_;
  const MuonOptions options_;
  const std::unique_ptr<internal::OptimizerPieces> matrices_;
  std::unique_ptr<AdamW> rest_;  // null: there is none
  std::vector<Parameter> parameters_;
  std::vector<MatrixPlace> places_;  // of each of the matrices; empty before the first step
  std::vector<int> in_use_;          // what rounds_ was planned for
  std::vector<MuonRound> rounds_;
};

}  // namespace sherd
