#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

struct CudaOptions {
  // Of the devices this process sees (CUDA_VISIBLE_DEVICES), from 0.
  int index = 0;
  // The most memory to take; 0: all there is. What others of the device leave counts either way.
  int64_t memory_bytes = 0;
  // Whether matrix products of f32 may round their operands to 11 bits (TF32), which is several
  // times as fast. Off, they are as exact as on a CPU.
  bool tf32 = false;
};

// Opens a CUDA device. The rest of the library works on it through `Device` alone.
//
// Its memory is one range of addresses behind which memory is put as it is used (see AddressRange),
// so a step that repeats asks the driver for nothing. Work is queued; see DeviceBackend.
// Threads: safe. Each call gives a device of its own, with its own figures.
// Errors: kUnimplemented in a build without CUDA; kNotFound when there is no device, or none of
// that
//   index, naming how many there are; kFailedPrecondition for a driver that is too old, naming both
//   versions; kResourceExhausted when the device has no memory left.
absl::StatusOr<Device> OpenCuda(const CudaOptions& options = {});

// How many devices this process sees: 0 without CUDA, without a driver, or without a device; `why`
// then says which.
int CountCudaDevices(std::string* why = nullptr);

}  // namespace sherd
