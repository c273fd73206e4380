#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "sherd/autograd/optim/optimizer.h"

namespace sherd::internal {

// How a parameter's step differs from its neighbour's.
struct PieceSettings {
  double lr_scale = 1.0;
  double weight_decay = 0.0;

  friend bool operator==(const PieceSettings& a, const PieceSettings& b) {
    return a.lr_scale == b.lr_scale && a.weight_decay == b.weight_decay;
  }
};

// Which parameters decay when their group does not say.
enum class DecayRule {
  kMatrices,  // those of two or more dimensions: norms and biases do not
  kAll,
};

struct PieceOptions {
  std::string op;  // for messages
  std::span<const ParameterGroup> groups;
  double weight_decay = 0.0;
  DecayRule decay_rule = DecayRule::kMatrices;
  std::vector<std::string> states;   // names of what is kept for each element, at most kMaxStates
  std::optional<DType> state_dtype;  // unset: the parameter's
};

// Pieces that lie one after another in memory and take the same step. All 1-D.
struct PieceRun {
  static constexpr size_t kMaxStates = 2;
  Tensor param;
  Tensor grad;
  std::array<Tensor, kMaxStates> states;
  int64_t step = 0;  // counted from 1
  PieceSettings settings;
};

// What every elementwise optimizer shares: which parameters belong to which group, the state beside
// their local pieces, and how pieces are put together so that one kernel updates many.
//
// State lies in the order of the pieces it belongs to, so runs of pieces are runs of state.
class OptimizerPieces {
 public:
  // Errors: kInvalidArgument if there are no parameters, for a group that matches none or has no
  // predicate, naming it, for a negative rate or decay, or a state dtype that is no float.
  OptimizerPieces(std::vector<Parameter> parameters, const PieceOptions& options);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Of parameters()[i].
  const PieceSettings& settings(size_t i) const { return settings_[i]; }
  // The state of parameters()[i], beside its local piece; zeros when it is new.
  Tensor StateOf(size_t i, size_t state);

  // Counts a step of parameters()[i] that is not made by Step.
  void CountStep(size_t i) { ++steps_[i]; }

  // Counts a step of each parameter that has a gradient, raises its version, and calls `update` for
  // runs that cover the local pieces of these parameters.
  // Cost: no heap allocation from the second time on.
  void Step(absl::FunctionRef<void(const PieceRun&)> update);
  // See Optimizer::VisitState.
  void VisitState(OptimizerStateVisitor& visitor);

 private:
  // The states of those pieces in one storage that are trained here.
  struct Slab {
    Ref<Storage> of;  // the storage of the local pieces these belong to
    std::array<Tensor, PieceRun::kMaxStates> states;
  };
  static constexpr size_t kNoSlab = ~size_t{0};
  bool HasSlab(size_t i) const;
  Slab MakeSlab(const Tensor& local);
  const Slab& SlabOf(size_t i, const Tensor& local);
  void Append(PieceRun run);

  std::vector<Parameter> parameters_;
  std::vector<PieceSettings> settings_;  // of each parameter, as are the next three
  std::vector<int64_t> steps_;           // counted when it had a gradient
  std::vector<size_t> slab_of_;          // kNoSlab: none yet
  std::vector<int64_t> state_offset_;    // its first element there
  const std::vector<std::string> states_;
  const std::optional<DType> state_dtype_;
  std::vector<Slab> slabs_;
  std::vector<PieceRun> runs_;  // empty between steps; kept for its memory
};

}  // namespace sherd::internal
