#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/runtime/base/status_of.h"
#include "sherd/shard/context.h"
#include "sherd/shard/unit.h"

namespace sherd::status {

// The engine's calls for callers without exceptions: the calls of Unit and ShardContext with the
// same contracts, whose errors are returned. None of them throws.
//
// After an error a scope that was being opened is not open, and one that was being closed is
// closed. A caller that gives up between the two calls of a scope leaves it by AbandonForward or
// AbandonBackward, which never fail. A failed gather or reduction has ended the step for all ranks:
// CheckUsable says so, and Recover makes the units of one rank clean again.
// Threads, COLLECTIVE: as the calls they stand for. What a Unit or a context only reads or never
// fails in (full, local, AbandonForward, ...) is called on it directly.

// What the units of a mesh share; see ShardContext::Of.
inline absl::StatusOr<std::shared_ptr<ShardContext>> ContextOf(const Mesh& mesh) noexcept {
  return StatusOrOf([&] { return ShardContext::Of(mesh); });
}
// Of ShardContext: whether a step has failed, with its text; the reductions in flight; the end of a
// step's backward, for what units keep for more calls or for GradientSync; a clean start on one
// rank.
inline absl::Status CheckUsable(const ShardContext& context) noexcept {
  return StatusOf([&] { context.CheckUsable(); });
}
inline absl::Status WaitReductions(ShardContext& context, int in_flight) noexcept {
  return StatusOf([&] { context.WaitReductions(in_flight); });
}
inline absl::Status EndOfBackward(ShardContext& context) noexcept {
  return StatusOf([&] { context.EndOfBackward(); });
}
inline absl::Status Recover(ShardContext& context) noexcept {
  return StatusOf([&] { context.Recover(); });
}

// A new unit; see Unit's constructor. Ownership: the caller's; it keeps the context alive.
// Out of line, since code without exceptions would not give back the memory of one that refused.
absl::StatusOr<std::unique_ptr<Unit>> MakeUnit(std::string name,
                                               std::vector<UnitParameter> parameters,
                                               std::shared_ptr<ShardContext> context,
                                               const UnitOptions& options = {}) noexcept;
// Of Unit: scopes, in this order for each call. What TakeGradient returns is written, or added to,
// before EndBackward.
inline absl::Status EnterForward(Unit& unit, int64_t version) noexcept {
  return StatusOf([&] { unit.EnterForward(version); });
}
inline absl::Status ExitForward(Unit& unit, AfterScope after = AfterScope::kReshard,
                                bool backward_follows = false) noexcept {
  return StatusOf([&] { unit.ExitForward(after, backward_follows); });
}
inline absl::Status BeginBackward(Unit& unit, int64_t version) noexcept {
  return StatusOf([&] { unit.BeginBackward(version); });
}
inline absl::StatusOr<UnitGradient> TakeGradient(Unit& unit, int i) noexcept {
  return StatusOrOf([&] { return unit.TakeGradient(i); });
}
inline absl::Status EndBackward(Unit& unit, AfterScope after = AfterScope::kReshard) noexcept {
  return StatusOf([&] { unit.EndBackward(after); });
}
// Of Unit: what comes between and after scopes. An undefined tensor stands for no gradient, as in
// the calls themselves.
//
// Whether the gather ahead is on its way; false if it is not needed.
inline absl::StatusOr<bool> Prefetch(Unit& unit) noexcept {
  return StatusOrOf([&] { return unit.Prefetch(); });
}
// Frees the gathered parameters; nothing with an open scope.
inline absl::Status Reshard(Unit& unit) noexcept {
  return StatusOf([&] { unit.Reshard(); });
}
// Reduces what EndBackward has left.
inline absl::Status FinishGradients(Unit& unit) noexcept {
  return StatusOf([&] { unit.FinishGradients(); });
}
// The sum of what this rank contributed to, and the sum whoever did. Both wait for reductions.
inline absl::StatusOr<Tensor> LocalGradient(Unit& unit, int i) noexcept {
  return StatusOrOf([&] { return unit.LocalGradient(i); });
}
inline absl::StatusOr<Tensor> HeldGradient(Unit& unit, int i) noexcept {
  return StatusOrOf([&] { return unit.HeldGradient(i); });
}
// Between steps, on all ranks alike.
inline absl::Status SetTrainable(Unit& unit, int i, bool trainable) noexcept {
  return StatusOf([&] { unit.SetTrainable(i, trainable); });
}

}  // namespace sherd::status
