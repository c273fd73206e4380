#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/shard/context.h"
#include "sherd/shard/scale.h"
#include "sherd/shard/stage.h"
#include "sherd/shard/unit.h"

namespace sherd {

struct FullyShardOptions {
  // Whether the gathered parameters are freed after each forward and gathered again for the
  // backward: least memory, one more gather for each call. Unset: true, and false for the root,
  // whose backward begins as soon as its forward has ended.
  std::optional<bool> reshard_after_forward;
  // Of a unit that reshards after its forward: each rank keeps 1/park of the parameters for the
  // backward, which then gathers from `park` neighbours only, those of one host, say. A divisor of
  // the shard axis' size; 0 or 1: off.
  int park = 0;
  // Whether they are freed after each backward too. false keeps them for the next micro-batch, at
  // the cost of their memory; a window's Finish frees them.
  bool reshard_after_backward = true;
  // How many units are gathered ahead when this one is, in the order of the same forward or
  // backward before: hides the wait for them behind the compute in between. Each costs the memory
  // of one more gathered unit. 0: none.
  int prefetch = 1;
  // What is cut along which axis of the mesh: ZeRO-3, and hybrid on a mesh of two axes.
  Stage stage = kZero3;
  // Dtypes of compute and messages; kBf16, say. Masters keep the parameters' own dtype.
  MixedPrecision precision = {};
  // Of a unit called several times before a backward: its gradients are reduced once, after its
  // last call's backward. Memory: whole gradients from its first backward to its last. A list of
  // modules always does so.
  bool reduce_once = false;
  // Owned pieces, their gradients and so the optimizer's state live in host memory.
  bool offload = false;
  // How many elements of a parameter, counted from its first, never lie on two ranks: a row, or k
  // rows, for block formats and for optimizers that need whole rows. Unset: 1. Costs padding, see
  // LayoutSegment.
  std::function<int64_t(const Parameter&)> granule = {};
  // Parameters this call leaves alone: not cut, not reduced, the caller's.
  std::vector<Parameter> ignored = {};
  // Who divides the gradients; see scale.h. Read from the root: units inside say kAuto or the same,
  // or a backward and an Accumulation are refused.
  ScaleBy scale = ScaleBy::kAuto;
};

namespace internal {
void FullyShardModules(std::vector<Module*> modules, const Mesh& mesh,
                       const FullyShardOptions& options);
}  // namespace internal

// Makes the parameters below `module` that no inner call has claimed one unit: each rank keeps an
// equal part of them, and the whole exists only while a call of the module is open.
//
// Apply it bottom-up: to the blocks, then to the model, which becomes the root and takes the rest.
// Returns the module, so that wrappers nest: FullyShard(Checkpoint(block), mesh). Calls,
// parameters' names and shapes stay as they were; parameters of one rank's optimizer are their
// local() pieces. Each call gathers once (and once more for its backward if it was resharded), each
// backward of a call reduces once, and the sums are added: k calls before one backward count k
// times, exactly. Parameters that have values keep them; the others get theirs from Initialize, and
// a call before that is kFailedPrecondition naming the parameter.
// A weight that is tied to a module further out is left to the unit of a common ancestor.
// Errors: kInvalidArgument for options out of range or that the mesh cannot have (see
//   ShardContext::AxesOf), if the module is a unit already, a parameter is shared with a unit that
//   is not below this module (naming both), has no elements, or has values on another device than
//   the mesh's.
// COLLECTIVE: all ranks shard the same modules in the same order; nothing is sent.
template <std::derived_from<Module> M>
M& FullyShard(M& module, const Mesh& mesh, const FullyShardOptions& options = {}) {
  internal::FullyShardModules({&module}, mesh, options);
  return module;
}

// Makes the parameters of several modules one unit, for modules that are called one after another
// and too small to be gathered alone: a final norm and the head. Gathered at the first call, kept
// until a scope of another unit opens; reduced once, when the backward of the last call is done.
// Errors: as above, and for a module given beside one it is below. COLLECTIVE as above.
inline void FullyShard(std::initializer_list<Module*> modules, const Mesh& mesh,
                       const FullyShardOptions& options = {}) {
  internal::FullyShardModules(std::vector<Module*>(modules), mesh, options);
}

// Starts the gather of a unit's parameters before a call needs them, and returns at once: while a
// batch is being made, say. The next call of the module, or a UnitScope, waits for it and then
// reshards as usual; Reshard gives it back unused, and so does the end of the next backward.
// COLLECTIVE over the unit's ranks, in one order with their calls. Memory: the gathered parameters
// from now on. Errors: kInvalidArgument if the module is no unit, kFailedPrecondition after a
// failure; those of the gather come from whoever waits.
void StartUnshard(Module& module);

// Frees the gathered parameters of a unit now; nothing if they are not there or a call is open.
// Errors: kInvalidArgument if the module is no unit.
void Reshard(Module& module);

// Takes part in a call of `module` that other ranks make here and this one does not: an expert no
// token of this rank went to, say. Gathers as the call does, and its backward gathers and reduces
// where theirs does, contributing what this rank has accumulated, or zeros; nothing is computed.
// Call it where the others call the module, inside the same checkpointed regions. It speaks for one
// unit: of a module with units inside, open a UnitScope and participate in those in it. A backward
// enters every participation that its tape holds, so a tape with several roots takes the calls of
// one of them only. COLLECTIVE.
// Errors: as StartUnshard. A call that some ranks neither make nor participate in is an error on
// all ranks that names both units, at once or when the deadline of a collective passes.
void Participate(Module& module);

// How far the gradients of the units at and below `module` go from their next backward on; kFull
// at first. kNone is local accumulation without communication. All patterns give the same sums.
// COLLECTIVE in that all ranks say the same; nothing is sent. Memory: see GradientSync.
void SetGradientSync(Module& module, GradientSync sync);

// Reduces what backwards with another sync than kFull have left at and below `module`: the
// gradients are then complete. COLLECTIVE. REQUIRES: no call is open.
void FinishGradients(Module& module);

// Change the option of that name for the units at and below `module`, from the next call on. On
// all ranks alike.
void SetReshardAfterForward(Module& module, bool reshard);
void SetReshardAfterBackward(Module& module, bool reshard);

// Says what is gathered ahead when `module`'s unit is gathered in a forward, or in a backward,
// instead of what followed it the last time; an empty list: nothing. Those that no scope used are
// freed at the end of the outermost scope. On all ranks alike. Errors: kInvalidArgument if one of
// them is no unit.
void SetForwardPrefetch(Module& module, const std::vector<Module*>& next);
void SetBackwardPrefetch(Module& module, const std::vector<Module*>& next);

// The unit of a module that FullyShard was applied to; null otherwise. For tests and reports.
Unit* UnitOf(const Module& module);

// The unit that holds a parameter; null if none does.
Unit* UnitOf(const Parameter& parameter);

// All units of a module and the modules below it.
std::vector<Unit*> UnitsOf(const Module& module);

// Whether FullyShard was told to leave the parameter alone, at `module` or below.
bool IsIgnored(const Module& module, const Parameter& parameter);

// The context the units of a module share; null if it has none.
std::shared_ptr<ShardContext> ContextOf(const Module& module);

// While it lives, the parameters of a unit may be read outside a call of its module: a penalty on
// weights, an export. Recorded reads get their gradient in a scope of their own.
// COLLECTIVE over the unit's ranks. Errors: an exception that leaves it marks the step failed.
class UnitScope {
 public:
  explicit UnitScope(Module& module);
  ~UnitScope();
  UnitScope(const UnitScope&) = delete;
  UnitScope& operator=(const UnitScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Makes a model usable again after a step that failed on its only rank, or a window that was not
// finished: drops all gradients and reshards. Reset the tape too. Errors: kFailedPrecondition with
// several ranks, whose groups were aborted.
void Recover(Module& model);

}  // namespace sherd
