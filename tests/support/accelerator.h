#pragma once

#include <string>

#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/tensor.h"

namespace sherd::testing {

// The device that tests of a backend other than the CPU run on: the first CUDA device; in programs
// that are linked with sherd_cuda_emulated, one that the CPU plays. Undefined where there is none;
// `why` then says so.
Device Accelerator(std::string* why = nullptr);

// A copy of x on `device` with the same strides: all of its storage is copied.
Tensor MoveTo(const Device& device, const Tensor& x);

// A contiguous copy on a CPU.
Tensor MoveToHost(const Device& cpu, const Tensor& x);

}  // namespace sherd::testing
