#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/shard/stage.h"
#include "sherd/shard/window.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

// How the blocks of the grid's model are wrapped.
enum class CheckpointOrder { kOff, kInside, kOutside };

// What a checkpoint keeps.
enum class GridPolicy {
  kFull,        // nothing, and computes everything again
  kEarlyStop,   // nothing, and computes what is read
  kMatmuls,     // matrix products and attention
  kEveryOther,  // every other op, by a predicate
  kEverything,  // all of it
  kBudget,      // what a memory budget chooses
  kOffload,     // matrix products and attention, in host memory
};
inline constexpr int kGridPolicies = 7;

// The meshes of the grid, as ranks and those of them along the shard axis, and its stages.
inline constexpr std::array<std::pair<int, int>, 6> kGridMeshes = {
    {{1, 1}, {2, 2}, {2, 1}, {3, 3}, {4, 4}, {4, 2}}};
inline constexpr std::array<Stage, 7> kGridStages = {kDataParallel,
                                                     kZero1,
                                                     kZero2,
                                                     kZero3,
                                                     kHybridOptimizer,
                                                     kZero3Everywhere,
                                                     Stage{kShardGradients, kShardOptimizer}};

// One point of the parity grid.
struct GridCase {
  DType dtype = DType::kF64;
  int ranks = 1;
  int micro_batches = 1;
  CheckpointOrder checkpoint = CheckpointOrder::kOff;
  GridPolicy policy = GridPolicy::kEarlyStop;
  bool reshard = true;
  int prefetch = 1;
  int calls = 1;  // forwards before one backward
  bool sharded = true;
  Stage stage = kZero3;
  int inside = 0;  // ranks along the shard axis; 0: all
  WindowSync sync = WindowSync::kCutEach;
  MixedPrecision precision = {};
  bool offload = false;
  bool reduce_once = false;
  bool keep = false;  // gathered from one micro-batch to the next
  int park = 0;
};

// What to call a case in messages and tables.
std::string NameOf(const GridCase& c);

// Trains three steps and expects losses, and gradients of each parameter in relative L2 norm, to be
// those of the unsharded model on one rank: within 1e-12 in f64, within 1e-5 in f32. With a
// precision of its own, those of one rank in that precision that takes all ranks' micro-batches in
// turn, within 1e-5. On one rank, also the bits of the same run without checkpoints. Prints the
// worst error.
void ExpectParity(const GridCase& c);

// The same for ranks that `run_ranks` makes, of whatever device: it calls its argument for every
// rank of this process. The reference stays one rank on a CPU, but for a precision of its own: that
// of one rank made with `alone`, which rounds as the others do. With `bits`, also what is said
// above of bits, for a CPU.
using RanksRunner = std::function<void(int ranks, const std::function<void(World&)>& body)>;
void ExpectParity(const GridCase& c, const RanksRunner& run_ranks, const RankOptions& alone,
                  bool bits = false);

}  // namespace sherd::testing
