#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/core/device.h"

namespace sherd::internal {

// The device that `options` want for the rank of `launch`.
// Errors: as OpenCuda, naming the rank's number on its host where that chose the device.
absl::StatusOr<Device> OpenWorldDevice(const LaunchInfo& launch, int threads,
                                       const WorldOptions& options);

// A group of one rank for buffers of the host and of `device`.
std::unique_ptr<ProcessGroup> LocalGroupOf(const Device& device);

struct DeviceGroup {
  std::shared_ptr<ProcessGroup> group;
  std::string driver;  // "nccl" or "gloo"
};

// The group of all ranks for buffers of the host and of a CUDA device, over `gloo`.
//
// COLLECTIVE, also for ranks that have no device: all then return the error of the first of them.
absl::StatusOr<DeviceGroup> GroupOfDevice(std::shared_ptr<ProcessGroup> gloo,
                                          const absl::StatusOr<Device>& device,
                                          const LaunchInfo& launch, const WorldOptions& options,
                                          const LogSink& log);

}  // namespace sherd::internal
