#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "sherd/autograd/call.h"
#include "sherd/autograd/module.h"

namespace sherd {

namespace internal {
// Runs a call whose ops are dropped after the forward and computed again in the backward.
void RunCheckpointed(const CallContext& call);
void AddCheckpoint(Module& module);
}  // namespace internal

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
M& Checkpoint(M& module) {
  internal::AddCheckpoint(module);
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
  internal::RunCheckpointed(CallContext(nullptr, record, {}));
  return record->TakeResult();
}

}  // namespace sherd
