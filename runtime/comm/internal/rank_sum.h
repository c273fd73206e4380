#pragma once

#include <cstdint>
#include <span>

#include "sherd/runtime/core/dtype.h"

namespace sherd::internal {

// Sums arrays element by element in their order: out = ((in0 + in1) + in2) + ..., or, with `add`,
// out = out + (((in0 + in1) + in2) + ...).
//
// bf16 and f16 are added up in f32 and rounded once; integers wrap. `out` may be one of the inputs.
// Shapes: each of `inputs`, at least one, and `out` have `elems` elements of `dtype`, aligned to
// it. Threads: safe; runs on the caller's.
void SumInRankOrder(std::span<const void* const> inputs, void* out, int64_t elems, DType dtype,
                    bool add);

}  // namespace sherd::internal
