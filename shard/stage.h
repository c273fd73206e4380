#pragma once

#include <cstdint>
#include <optional>

#include "sherd/runtime/core/dtype.h"

namespace sherd {

// Whether the ranks along one axis of the mesh hold the same of something, or a piece each.
enum class Placement : uint8_t { kReplicate, kShard };

// What the ranks along one axis hold of a unit. Whatever shards the parameters shards their
// gradients, and whatever shards those shards the optimizer's state and the values it updates.
struct AxisPlacement {
  Placement parameters = Placement::kReplicate;
  Placement gradients = Placement::kReplicate;
  Placement optimizer = Placement::kReplicate;
  friend bool operator==(const AxisPlacement&, const AxisPlacement&) = default;
};

inline constexpr AxisPlacement kReplicateAll{};
inline constexpr AxisPlacement kShardOptimizer{Placement::kReplicate, Placement::kReplicate,
                                               Placement::kShard};
inline constexpr AxisPlacement kShardGradients{Placement::kReplicate, Placement::kShard,
                                               Placement::kShard};
inline constexpr AxisPlacement kShardAll{Placement::kShard, Placement::kShard, Placement::kShard};

// Which quantity is cut along which axis of the mesh: its inner axis (`shard`, usually the ranks of
// a host) and its outer one (`replicate`, usually the hosts). On a mesh of one axis the outer one
// has one rank, and its placement does not matter.
//
// Parameters that are cut are gathered for each call; those that are not are refreshed once after
// each optimizer step that changed them, along the axes that cut the optimizer. Gradients are
// reduced along the axes that cut them at each call, and along the others when they are finished.
// Bytes a rank holds, of P parameter bytes, G gradient bytes, O optimizer bytes, S ranks inside and
// R outside:
//   kDataParallel    P    G    O
//   kZero1           P    G    O/S
//   kZero2           P    G/S  O/S
//   kZero3           P/S  G/S  O/S    on a mesh of two axes: hybrid sharding
//   kHybridOptimizer P/S  G/S  O/(S R)
//   kZero3Everywhere P/(S R)  G/(S R)  O/(S R)
// G is of what micro-batches add up; the optimizer reads its pieces alone. Parameters kept in
// another dtype than their own (see MixedPrecision) stand beside masters of the optimizer's pieces.
// Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models"; Zhao et al. 2023, "PyTorch FSDP".
struct Stage {
  AxisPlacement shard = kShardAll;
  AxisPlacement replicate = kReplicateAll;
  friend bool operator==(const Stage&, const Stage&) = default;
};

inline constexpr Stage kDataParallel{kReplicateAll, kReplicateAll};
inline constexpr Stage kZero1{kShardOptimizer, kReplicateAll};
inline constexpr Stage kZero2{kShardGradients, kReplicateAll};
inline constexpr Stage kZero3{kShardAll, kReplicateAll};
inline constexpr Stage kHybridOptimizer{kShardAll, kShardOptimizer};
inline constexpr Stage kZero3Everywhere{kShardAll, kShardAll};

// The dtypes of a unit's calls and messages. What is unset stays in the parameter's own dtype, in
// which shards, sums of gradients and the optimizer's state are kept. Only floating parameters
// take part; buffers and inputs of other dtypes are never cast.
struct MixedPrecision {
  // Of the gathered parameters, and so of the compute. Cost: one cast of the shard at each gather;
  // the gather sends as many bytes as this dtype has.
  std::optional<DType> parameters;
  // Of gradients on the wire; sums between ranks are taken in f32 (f64 for f64) in rank order.
  std::optional<DType> reduce;
  // Of the floating results of a call.
  std::optional<DType> output;
  // Casts the floating arguments of a call to the dtype of the parameters.
  bool cast_inputs = true;
  friend bool operator==(const MixedPrecision&, const MixedPrecision&) = default;
};

// Compute and gathers in bf16, sums and wire of gradients in the parameter's dtype.
inline constexpr MixedPrecision kBf16{.parameters = DType::kBF16};

}  // namespace sherd
