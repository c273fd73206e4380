#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "sherd/autograd/call.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/op.h"

namespace sherd {

// Says of one op, before it computes, whether a checkpoint keeps its outputs and inner values
// instead of computing them again. Empty: of none.
using KeepPolicy = std::function<bool(const OpInfo&)>;

// What checkpoints did so far; see CheckpointOptions::stats.
struct CheckpointStats {
  int64_t calls = 0;            // first passes of recorded calls
  int64_t recomputes = 0;       // second ones
  int64_t ops = 0;              // in the first passes
  int64_t kept_ops = 0;         // of these, whose results were kept
  int64_t repeated_ops = 0;     // computed again; views are not counted
  int64_t kept_bytes = 0;       // held now
  int64_t peak_kept_bytes = 0;  // the most that was held at once
};

struct CheckpointOptions {
  KeepPolicy policy;  // full recompute by default
  // Computes again only what a backward reads, and what that needs. The body runs as a whole all
  // the same. Turn it off for bodies whose recompute has to compute every value.
  bool early_stop = true;
  // Where counts go, to have one for several modules; by default each module has its own.
  std::shared_ptr<CheckpointStats> stats;
};

namespace internal {
// Runs a call whose ops are dropped after the forward and computed again in the backward.
void RunCheckpointed(const CallContext& call, const CheckpointOptions& options,
                     const std::shared_ptr<CheckpointStats>& stats);
void AddCheckpoint(Module& module, CheckpointOptions options);
}  // namespace internal

// The counts of a module's checkpoint; zeros if it has none.
CheckpointStats StatsOf(const Module& module);

// Makes every later call of `module` a checkpoint: drops what the ops inside save for backward, and
// runs the body again when backward reaches the call.
//
// The recompute sees the same arguments, the same random numbers and the same parameters, so
// gradients have the same bits as without checkpointing. Returns the module, so that wrappers nest
// as they compose: FullyShard(Checkpoint(block)) recomputes inside one gather. The other order
// works too and costs what its README says. Cost: keeps the arguments of each call; runs the body
// once more. Nothing outside a Recording. Errors, from the backward: kFailedPrecondition "recompute
// differs" if the second run makes other ops or
//   outputs of another shape, or a parameter changed since the forward; nothing is recomputed then.
// REQUIRES: the module outlives the tape's record.
// Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
template <std::derived_from<Module> M>
M& Checkpoint(M& module, CheckpointOptions options = {}) {
  internal::AddCheckpoint(module, std::move(options));
  return module;
}

// Calls fn(args...) once as a checkpoint.
//
// Ownership: `fn` and the arguments are copied and live as long as the tape needs them. REQUIRES:
// `fn` captures by value; what it captures by reference must live as long.
template <typename Fn, typename... Args>
requires(!std::derived_from<std::remove_cvref_t<Fn>, Module> &&
         std::invocable<const Fn&, const Args&...>) auto Checkpoint(Fn fn, const Args&... args) {
  static_assert((internal::kMayOutliveCaller<std::decay_t<Args>> && ...),
                "an argument of a checkpoint would dangle in the recompute: pass it by value");
  auto record =
      std::make_shared<internal::TypedCall<Fn, std::decay_t<Args>...>>(std::move(fn), args...);
  internal::RunCheckpointed(CallContext(nullptr, record, {}), {}, nullptr);
  return record->TakeResult();
}

}  // namespace sherd
