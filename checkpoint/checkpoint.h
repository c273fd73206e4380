#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "sherd/autograd/call.h"
#include "sherd/autograd/module.h"
#include "sherd/checkpoint/budget.h"
#include "sherd/checkpoint/offload.h"
#include "sherd/checkpoint/policy.h"
#include "sherd/runtime/base/log.h"

namespace sherd {

// What to do when a checkpoint is around calls of sharded units in the order that costs more:
// around more than one of them, or around one with others inside. Each such unit is then gathered
// three times for one backward instead of twice, and not ahead of time.
enum class WrongOrder : uint8_t {
  kAllow,  // nothing
  kWarn,   // say so once for each module, or for each unit where a function is checkpointed
  kError   // refuse the call: kFailedPrecondition at the end of its forward, nothing is recorded
};

struct CheckpointOptions {
  // Which results to keep instead of computing them again; by default none.
  KeepPolicy policy;
  // Bounds what is kept, and chooses it; `policy` then only guides the first round. One object for
  // all checkpoints of a model.
  std::shared_ptr<MemoryBudget> budget;
  // Keeps what is kept in host memory. One object for all checkpoints of a model. Costs a copy to
  // the host and one back.
  std::shared_ptr<Offload> offload;
  // Computes again only what a backward reads, and what that needs. The body runs as a whole all
  // the same. Turn it off for bodies whose recompute has to compute every value.
  bool early_stop = true;
  WrongOrder wrong_order = WrongOrder::kWarn;
  // Where warnings go; unset: where the units' mesh logs to.
  LogSink log;
  // Where counts go, to have one for several modules; by default each module has its own.
  std::shared_ptr<CheckpointStats> stats;
};

namespace internal {

// The options of one checkpoint, and what it remembers from call to call.
struct CheckpointState {
  CheckpointOptions options;
  std::shared_ptr<CheckpointStats> stats;  // may be null
  bool has_module = false;
  bool warned = false;
};

// Runs a call whose ops are dropped after the forward and computed again in the backward.
void RunCheckpointed(const CallContext& call, CheckpointState& state);
void AddCheckpoint(Module& module, CheckpointOptions options);
void RefuseInterval(int64_t n);

// The module behind an element of a list: itself, or what it points to.
inline Module& ModuleBehind(Module& module) { return module; }
template <typename P>
requires(!std::derived_from<P, Module>) Module& ModuleBehind(P& pointer) { return *pointer; }

}  // namespace internal

// The counts of a module's outermost checkpoint; zeros if it has none.
CheckpointStats StatsOf(const Module& module);

// Makes every later call of `module` a checkpoint: drops what the ops inside save for backward, and
// runs the body again when backward reaches the call.
//
// The recompute sees the same arguments, the same random numbers and the same parameters, so
// gradients have the same bits as without checkpointing. Returns the module, so that wrappers nest
// as they compose: FullyShard(Checkpoint(block)) recomputes inside one gather. The other order
// works too and costs what WrongOrder says. Nothing outside a Recording.
// Cost: keeps the arguments of each call and what the policy keeps; runs the body once more, and of
//   its ops those that a backward needs.
// Ownership: a module that a std::shared_ptr owns lives as long as a tape holds one of its calls.
// REQUIRES: any other module outlives the tape's record.
// Errors, from the backward: kFailedPrecondition "recompute differs" if the second run makes other
//   ops or outputs of another shape, or a parameter changed since the forward (nothing is
//   recomputed then); the error of a copy from or to the host.
// Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
template <std::derived_from<Module> M>
M& Checkpoint(M& module, const CheckpointOptions& options = {}) {
  internal::AddCheckpoint(module, options);
  return module;
}

// Makes the first, the (n+1)-th, the (2n+1)-th, ... of a list of modules (or of pointers to them)
// checkpoints: less memory saved and less repeated than with all of them.
//
// The other way round, one checkpoint for several blocks in turn, is a function of them:
//   Checkpoint([a, b](const Variable& x) { return (*b)((*a)(x)); }, x)
// which keeps one argument for the segment, but holds what all its blocks save while they are
// recomputed. Errors: kInvalidArgument if n < 1.
template <typename Modules>
void CheckpointEvery(Modules& modules, int64_t n, const CheckpointOptions& options = {}) {
  if (n < 1) internal::RefuseInterval(n);
  int64_t i = 0;
  for (auto& module : modules) {
    if (i++ % n == 0) internal::AddCheckpoint(internal::ModuleBehind(module), options);
  }
}

// Calls fn(args...) once as a checkpoint.
//
// Ownership: `fn` and the arguments are copied and live as long as the tape needs them. REQUIRES:
// `fn` captures by value; what it captures by reference must live as long, and so must a module it
// calls unless it holds its std::shared_ptr.
template <typename Fn, typename... Args>
requires(std::invocable<const Fn&, const Args&...>) auto Checkpoint(CheckpointOptions options,
                                                                    Fn fn, const Args&... args) {
  static_assert((internal::kMayOutliveCaller<std::decay_t<Args>> && ...),
                "an argument of a checkpoint would dangle in the recompute: pass it by value");
  auto record =
      std::make_shared<internal::TypedCall<Fn, std::decay_t<Args>...>>(std::move(fn), args...);
  std::shared_ptr<CheckpointStats> stats = options.stats;
  internal::CheckpointState state{std::move(options), std::move(stats)};
  internal::RunCheckpointed(CallContext(nullptr, record, 0), state);
  return record->TakeResult();
}

// The same with the default options.
template <typename Fn, typename... Args>
requires(!std::derived_from<std::remove_cvref_t<Fn>, Module> &&
         !std::same_as<Fn, CheckpointOptions> &&
         std::invocable<const Fn&, const Args&...>) auto Checkpoint(Fn fn, const Args&... args) {
  return Checkpoint(CheckpointOptions{}, std::move(fn), args...);
}

}  // namespace sherd
