#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/core/events.h"
#include "sherd/shard/stage.h"
#include "sherd/shard/unit_parameter.h"

namespace sherd {

// A unit of a plan. PlanModelOf (plan_model.h) fills these in for modules.
struct PlanUnit {
  std::string name;
  std::vector<UnitParameter> parameters;
  // Calls in each forward, one after another, each of which gathers and reduces; 1 for the root.
  int64_t calls = 1;
  // Of the forward of one call. 0: 2 x parameters x tokens, that of matmuls. The backward takes
  // twice that, and once more with `recompute`.
  double forward_flops = 0.0;
  // What one call keeps from its forward to its backward; only the caller can know.
  int64_t activation_bytes = 0;
  // A checkpoint inside the unit runs the forward again in the backward.
  bool recompute = false;
  // As of FullyShardOptions; unset: true, and false for the root.
  std::optional<bool> reshard_after_forward;
  int prefetch = 1;
  Stage stage = kZero3;
  MixedPrecision precision;
};

// The root calls its blocks in this order and then computes with what parameters it has itself, as
// a language model's head does.
struct PlanModel {
  std::vector<PlanUnit> blocks;
  PlanUnit root;
};

// One axis of the mesh. Zeros: communication along it takes no time.
struct PlanLink {
  double bytes_per_second = 0.0;  // in one direction, of one rank
  double latency_seconds = 0.0;   // of one message between neighbours
};

struct PlanOptions {
  int shard_ranks = 1;
  int replicate_ranks = 1;
  int64_t micro_batches = 1;
  // Of one micro-batch on one rank, for the default of forward_flops.
  int64_t tokens = 0;
  // What one rank reaches in matmuls, not its peak. 0: compute takes no time.
  double flops_per_second = 0.0;
  PlanLink shard_link;
  PlanLink replicate_link;
  // Tensors of state for each trainable parameter: 2 for AdamW, 1 with momentum, 0.
  int optimizer_states = 2;
  std::optional<DType> optimizer_dtype;  // of the state; unset: the parameter's
};

// Collectives of one op that one rank takes part in.
struct PlanCollectives {
  int64_t count = 0;  // calls of a process group: one for each segment of a unit
  int64_t bytes = 0;  // of the whole buffers, as in Event
  int64_t sent_bytes = 0;
  double seconds = 0.0;
};

// One part of a step, on any one rank: they are all alike.
struct PlanPhase {
  // The most at once, by MemoryCategory and of their sum.
  std::array<int64_t, kMemoryCategories> peak_bytes{};
  int64_t total_peak_bytes = 0;
  std::array<PlanCollectives, 6> collectives{};  // by EventOp
  double seconds = 0.0;
  double compute_seconds = 0.0;
  double exposed_seconds = 0.0;  // compute waits for communication

  int64_t operator[](MemoryCategory c) const { return peak_bytes[static_cast<size_t>(c)]; }
  const PlanCollectives& operator[](EventOp op) const {
    return collectives[static_cast<size_t>(op)];
  }
};

// A step that was not run.
struct Plan {
  int ranks = 1;
  int64_t parameters = 0;  // elements, of the whole model
  PlanPhase init;
  PlanPhase forward;  // of all micro-batches, as is backward
  PlanPhase backward;
  PlanPhase step;  // the window's end: the last reductions, the verdict, the optimizer

  // The largest of the phases.
  int64_t peak_bytes(MemoryCategory category) const;
  int64_t total_peak_bytes() const;
  double step_seconds() const { return forward.seconds + backward.seconds + step.seconds; }
  // Tables by phase: bytes by category, collectives, seconds.
  std::string ToString() const;
};

// Goes through a step as the units would, without memory and without peers, and says what one rank
// would hold, send and wait for. The second step: prefetch knows the order.
//
// Memory: blocks as the allocator rounds them, at the latest moment they may be freed: a gradient
// buffer lives until the wait that bounds the reductions in flight. Counted are the categories of
// parameters, gradients and optimizer, and the activations as given; not staging, workspaces and
// buffers.
// Time: compute is one lane, and all communication of a rank another, in the order it is asked for.
// A collective over n ranks of an axis is a ring: n - 1 messages of 1/n of the buffer, twice that
// for an all-reduce. A unit's compute begins when its
// gather is done; gathers ahead and reductions run beside it, so a unit takes the longer of both.
// Backward waits while more than one reduction is in flight. The optimizer's own time, casts and
// the ranks' differences are left out.
// Not modelled: parking, offload, reduce_once, units kept after a backward, units within blocks.
// Gradients of all micro-batches but the last are reduced over the axes that cut them only, as a
// window does by default. Parameters that are kept whole or in part are refreshed by the first
// gather after a step.
// Cost: units x calls x micro-batches; no memory of the model's size.
// Errors: kInvalidArgument for counts below 1, negative figures, or layouts that overflow; naming
//   the unit or the option.
Plan MakePlan(const PlanModel& model, const PlanOptions& options);

}  // namespace sherd
