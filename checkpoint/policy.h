#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "sherd/autograd/op.h"

namespace sherd {

// Says of one op, before it computes, whether a checkpoint keeps its outputs and inner values
// instead of computing them again. Empty: of none.
//
// Any function of an OpInfo will do: its kind, name, module, ordinal, bytes, flops and outputs.
// What is kept of an op that nobody reads in the backward is given up at the end of the call. Views
// are never asked about: they cost nothing. Threads: called by the thread that runs the model.
// REQUIRES: captures by value, or what it refers to outlives the checkpoints.
using KeepPolicy = std::function<bool(const OpInfo&)>;

// Keeps nothing: the whole body is computed again, as far as a backward reads it. The default.
KeepPolicy KeepNothing();

// Keeps the results of ops of these kinds.
KeepPolicy KeepKinds(std::initializer_list<OpKind> kinds);

// Keeps the results of matrix products and of attention, with dropout or without, and of other ops
// that contain products: most of the FLOPs of a transformer for
// less than half of its activations. No product is computed twice.
KeepPolicy KeepMatmuls();

// Keeps everything a backward reads: no op is computed twice, and the memory is that of a call
// without a checkpoint. For comparisons.
KeepPolicy KeepAll();

// What checkpoints did so far, of one module or of those that share CheckpointOptions::stats.
struct CheckpointStats {
  int64_t calls = 0;       // first passes of recorded calls
  int64_t recomputes = 0;  // second ones

  int64_t ops = 0;              // in the first passes; a checkpoint inside another one is one op
  int64_t kept_ops = 0;         // of these, whose results were kept
  int64_t repeated_ops = 0;     // computed again; views are not counted
  double repeated_flops = 0.0;  // OpPlan::flops of these: of products and attention
  int64_t kept_bytes = 0;       // by policies, held now, in device or host memory
  int64_t peak_kept_bytes = 0;  // the most that was held at once
  int64_t offloaded_bytes = 0;  // sent to host memory, over all calls

  // One line for a log.
  std::string ToString() const;
};

}  // namespace sherd
