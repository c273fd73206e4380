#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/shard/context.h"
#include "sherd/shard/unit.h"

namespace sherd {

struct FullyShardOptions {
  // Whether the gathered parameters are freed after each forward and gathered again for the
  // backward: least memory, one more gather for each call. Unset: true, and false for the root,
  // whose backward begins as soon as its forward has ended.
  std::optional<bool> reshard_after_forward;
  // How many units are gathered ahead when this one is, in the order of the same forward or
  // backward before: hides the wait for them behind the compute in between. Each costs the memory
  // of one more gathered unit. 0: none.
  int prefetch = 1;
};

namespace internal {
void FullyShardModule(Module& module, const Mesh& mesh, const FullyShardOptions& options);
}  // namespace internal

// Makes the parameters below `module` that no inner call has claimed one unit: each rank keeps an
// equal part of them, and the whole exists only while a call of the module is open.
//
// Apply it bottom-up: to the blocks, then to the model, which becomes the root and takes the rest.
// Returns the module, so that wrappers nest: FullyShard(Checkpoint(block), mesh). Calls,
// parameters' names and shapes stay as they were; parameters of one rank's optimizer are their
// local() pieces. Each call gathers once (and once more for its backward if it was resharded), each
// backward of a call reduces once, and the sums are added: k calls before one backward count k
// times, exactly. Parameters that have values keep them; the others get theirs from Initialize.
// Errors: kInvalidArgument for a negative prefetch, if the module is a unit already, a parameter is
// shared with a unit that is not
//   below this module (naming both), has no elements, or has values on another device than the
//   mesh's.
// COLLECTIVE: all ranks shard the same modules in the same order; nothing is sent.
template <std::derived_from<Module> M>
M& FullyShard(M& module, const Mesh& mesh, FullyShardOptions options = {}) {
  internal::FullyShardModule(module, mesh, options);
  return module;
}

// Starts the gather of a unit's parameters before a call needs them, and returns at once: while a
// batch is being made, say. The next call of the module, or a UnitScope, waits for it and then
// reshards as usual; Reshard gives it back unused, and so does the end of a root's backward.
// COLLECTIVE over the unit's ranks, in one order with their calls. Memory: the gathered parameters
// from now on. Errors: kInvalidArgument if the module is no unit, kFailedPrecondition after a
// failure; those of the gather come from whoever waits.
void StartUnshard(Module& module);

// Frees the gathered parameters of a unit now; nothing if they are not there or a call is open.
// Errors: kInvalidArgument if the module is no unit.
void Reshard(Module& module);

// The unit of a module that FullyShard was applied to; null otherwise. For tests and reports.
Unit* UnitOf(const Module& module);

// All units of a module and the modules below it.
std::vector<Unit*> UnitsOf(const Module& module);

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
