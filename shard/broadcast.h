#pragma once

#include <cstdint>
#include <functional>

#include "sherd/autograd/module.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// Gives the whole value of a parameter, found by its name(): a tensor of its shape and dtype, on
// its device, of any strides. Undefined: there is none.
using ValueSource = std::function<Tensor(const Parameter&)>;

struct BroadcastOptions {
  // What is sent at a time. More costs that much memory on each rank while the call runs; less
  // costs a round trip for every piece of a parameter.
  int64_t buffer_bytes = int64_t{4} << 20;
};

// Fills the parameters below `model`, sharded or not, with values that only rank 0 has: those of a
// file, of another model.
//
// Each parameter is sent whole, one after another in the order of parameters(), through a buffer of
// bounded size; every rank copies what lies in its local() piece. So no rank but 0 ever holds more
// than its pieces and the buffer, and padding is not touched. The version of every parameter rises
// on every rank, as with MutableLocal: a backward of an older forward is refused, and units gather
// again.
//
// `source` is called on rank 0 alone, twice for each parameter: first for all of them, to check
// what it gives, then for each again when it is sent. One value is held at a time.
//
// COLLECTIVE over `group`, whose ranks have models of equal parameters; with sharded ones all ranks
// that own a part are among them, as in the mesh's world or in ContextOf(model)->control().
// Cost: the bytes of all parameters to each rank, and one small exchange before.
// Errors, on all ranks alike and before anything is changed: kInvalidArgument naming the parameters
//   without a value, or with one of another shape, dtype or device (both are shown), or what
//   `source` threw, with the rank that found it; kFailedPrecondition naming parameters that have no
//   memory yet, or if the ranks have other parameters. If `source` gives something else the second
//   time, its error leaves the call on rank 0 and aborts the group, and the parameters sent before
//   keep their new values.
void BroadcastFromRankZero(const Module& model, ProcessGroup& group, const ValueSource& source,
                           const BroadcastOptions& options = {});

}  // namespace sherd
