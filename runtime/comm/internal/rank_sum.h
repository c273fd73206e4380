#pragma once

#include <cstdint>
#include <span>

#include "sherd/runtime/core/dtype.h"

namespace sherd::internal {

// Where a sum goes.
struct SumTarget {
  void* out = nullptr;
  DType dtype = DType::kF32;
  bool add = false;  // to what is there
};

// Sums arrays element by element in their order: out = ((in0 + in1) + in2) + ..., or, with `add`,
// out = out + (((in0 + in1) + in2) + ...).
//
// bf16 and f16 are added up in f32 and rounded once, to the target's dtype; integers wrap. What is
// there is added in f32, in f64 when either dtype is. `out` may be one of the inputs when the
// dtypes are the same.
// Shapes: each of `inputs`, at least one, has `elems` elements of `dtype`, aligned to it.
// REQUIRES: the dtypes are the same or both floats. Threads: safe; runs on the caller's.
void SumInRankOrder(std::span<const void* const> inputs, DType dtype, const SumTarget& target,
                    int64_t elems);

}  // namespace sherd::internal
