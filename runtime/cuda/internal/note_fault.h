#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sherd/runtime/cuda/internal/fault.h"

// For .cu files.
namespace sherd::cuda {

// What a kernel checks indices against.
struct IndexCheck {
  Fault* fault = nullptr;
  FaultOp op = FaultOp::kNone;
  int64_t limit = 0;

  // Whether index `value`, which is element `place` of its tensor, is in [0, limit). Notes it if it
  // is not, unless another one is noted already.
  __device__ bool Passes(int64_t value, int64_t place) const {
    if (value >= 0 && value < limit) return true;
    static_assert(sizeof(FaultOp) == sizeof(int));
    if (atomicCAS(reinterpret_cast<int*>(&fault->op), 0, static_cast<int>(op)) == 0) {
      fault->value = value;
      fault->limit = limit;
      fault->place = place;
    }
    return false;
  }
};

}  // namespace sherd::cuda
