#pragma once

#include "sherd/runtime/core/device.h"
#include "sherd/runtime/kernels/internal/loops.h"

namespace sherd::kernels::internal {

// The tables of the instruction set that `device` runs on.
const Loops& LoopsOf(const Device& device);

}  // namespace sherd::kernels::internal
