#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "sherd/autograd/module.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// Takes the whole value of a parameter: a contiguous tensor of its shape and dtype, on the device
// of its local(). The tensor is only to be read, and valid during the call; with one rank it is the
// parameter's own memory.
using WeightSink = std::function<absl::Status(const Parameter&, const Tensor& value)>;

struct StreamOptions {
  // Whether every rank gets the values, or rank 0 alone. Costs the other ranks the memory of one
  // whole parameter at a time.
  bool to_all_ranks = false;
  // What is sent at a time, and so the buffer of a rank that only passes values on.
  int64_t buffer_bytes = int64_t{4} << 20;
};

// Hands the whole values of the parameters below `model`, sharded or not, to `sink`, one parameter
// after another in the order of parameters(): to an inference engine, to an exporter.
//
// A parameter is put together from the pieces of its owners, whatever units, stages and numbers of
// ranks there are, and let go before the next one: no rank ever holds the model. A tied weight
// comes once, under its first name. Nothing changes, and no unit is gathered.
// COLLECTIVE over `group`, between steps; as in BroadcastFromRankZero all ranks that own a part are
// in it. `sink` is called on rank 0 alone, or on all ranks, and may be empty where it is not
// called. Cost: the bytes of all parameters to each rank, and one small message for each parameter.
// Memory:
//   the largest parameter on ranks that get the values, one buffer on the others; nothing for one
//   rank.
// Errors, the same on all ranks: kFailedPrecondition naming a parameter without memory, or if ranks
//   have other parameters, or if no rank owns a part, before the first call of `sink`; what `sink`
//   returned or threw, with the parameter's name, and then it is not called again. Those of a
//   collective are thrown.
absl::Status StreamWeights(const Module& model, ProcessGroup& group, const WeightSink& sink,
                           const StreamOptions& options = {});

}  // namespace sherd
