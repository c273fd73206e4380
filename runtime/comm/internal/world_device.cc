#include "sherd/runtime/comm/internal/world_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/local_group.h"
#include "sherd/runtime/comm/nccl_group.h"
#include "sherd/runtime/comm/staged_group.h"
#include "sherd/runtime/cuda/cuda_device.h"

namespace sherd::internal {

absl::StatusOr<Device> OpenWorldDevice(const LaunchInfo& launch, int threads,
                                       const WorldOptions& options) {
  if (options.device == DeviceKind::kCpu) {
    return StatusOrOf([&] {
      return Device::Cpu({.index = std::max(options.device_index, 0),
                          .threads = threads,
                          .memory = options.memory});
    });
  }
  if (options.cuda_index < -1) {
    return absl::InvalidArgumentError(absl::StrCat("cuda_index is ", options.cuda_index));
  }
  const bool by_rank = options.cuda_index == -1;
  const int index = by_rank ? launch.local_rank : options.cuda_index;
  const int devices = CountCudaDevices();
  if (by_rank && devices > 0 && index >= devices) {
    return absl::NotFoundError(absl::StrCat(
        "there is no cuda:", index, " for local rank ", index, " of ", launch.local_size,
        ": this process sees ", devices, devices == 1 ? " device" : " devices",
        "; start as many ranks on a host as it has devices, or choose by cuda_index"));
  }
  return OpenCuda({.index = index, .memory_bytes = options.cuda_memory_bytes});
}

std::unique_ptr<ProcessGroup> LocalGroupOf(const Device& device) {
  std::unique_ptr<ProcessGroup> local = MakeLocalGroup();
  if (device.backend() == nullptr) return local;
  // Alone NCCL is not asked for anything.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ConnectNccl(std::move(local), device);
  ThrowIfError(group.status());
  return *std::move(group);
}

absl::StatusOr<DeviceGroup> GroupOfDevice(std::shared_ptr<ProcessGroup> gloo,
                                          const absl::StatusOr<Device>& device,
                                          const LaunchInfo& launch, const WorldOptions& options,
                                          const LogSink& log) {
  std::string shared;
  const absl::Status agreed = StatusOf([&] {
    const std::unique_ptr<ProcessGroup> control = gloo->Fork("devices");
    ThrowIfError(AgreeOn(*control, device.status(), {.op = "open devices"}));
    if (options.driver == GroupDriver::kAuto) {
      shared = FindSharedDevice(*control, *device, launch.nccl_host);
    }
  });
  if (!agreed.ok()) return agreed;
  if (options.driver == GroupDriver::kGloo || !shared.empty()) {
    if (!shared.empty() && launch.rank == 0 && log) {
      log({.level = LogLevel::kWarning,
           .rank = 0,
           .text = absl::StrCat(shared, ": collectives go through Gloo and host memory")});
    }
    return DeviceGroup{MakeStagedGroup(std::move(gloo), *device), "gloo"};
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ConnectNccl(
      std::move(gloo), *device, {.timeout = options.collective_timeout, .host = launch.nccl_host});
  if (!group.ok()) return group.status();
  return DeviceGroup{*std::move(group), "nccl"};
}

}  // namespace sherd::internal
