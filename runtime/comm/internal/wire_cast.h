#pragma once

#include <cstdint>

#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/dtype.h"

namespace sherd::internal {

// Writes each element of `in` to `out` in another float dtype, rounded once.
//
// Shapes: both have `elems` elements, aligned to their dtype; they are apart or the same memory of
// one dtype. REQUIRES: from == to, or both are floats. Threads: safe; runs on the caller's.
void CastElements(const void* in, DType from, void* out, DType to, int64_t elems);

// A reduction over one rank: `full` through the wire's dtype into `out`, or added to it.
//
// Rounds as a reduction over several ranks rounds each of them. `out` may be `full` when the two
// have one dtype. Cost: no memory but a block on the stack.
void PassThroughWire(const void* full, void* out, int64_t elems, const WireTypes& types, bool add);

// The end of an all_reduce: rounds the sum in `data` to `wire` and back, in place.
void RoundThroughWire(void* data, int64_t elems, DType dtype, DType wire);

}  // namespace sherd::internal
