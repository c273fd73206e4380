// RunRanks over NCCL of the emulator, each rank with a device of its own and every buffer in its
// memory. Sums are taken in rank order, since the tests ask for the bits that gives, and ranks
// compare their calls.
#include <utility>

#include "sherd/runtime/comm/checked_group.h"
#include "sherd/runtime/comm/nccl_group.h"
#include "sherd/runtime/cuda/cuda_device.h"
#include "tests/runtime/through_device.h"
#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

void RunRanks(int world_size, const std::function<void(World&)>& body, RankOptions options) {
  emulated::Configure({.devices = world_size});
  RunRanksOver(
      [](std::shared_ptr<ProcessGroup> gloo) -> std::shared_ptr<ProcessGroup> {
        absl::StatusOr<Device> device = OpenCuda({.index = gloo->rank()});
        ThrowIfError(device.status());
        absl::StatusOr<std::unique_ptr<ProcessGroup>> group =
            ConnectNccl(std::move(gloo), *device, {.staging_bytes = 64 << 10, .rank_order = true});
        ThrowIfError(group.status());
        return MakeThroughDevice(MakeCheckedGroup(*std::move(group)), *device);
      },
      world_size, body, std::move(options));
}

}  // namespace sherd::testing
