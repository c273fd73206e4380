// RunRanks over Gloo with every buffer in the memory of a fake device, in pieces of a few
// kilobytes.
#include <utility>

#include "sherd/runtime/comm/staged_group.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/through_device.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

void RunRanks(int world_size, const std::function<void(World&)>& body, RankOptions options) {
  RunRanksOver(
      [](std::shared_ptr<ProcessGroup> gloo) -> std::shared_ptr<ProcessGroup> {
        const Device device = MakeFakeDevice();
        return MakeThroughDevice(
            MakeStagedGroup(std::move(gloo), device, {.staging_bytes = 128 << 10}), device);
      },
      world_size, body, std::move(options));
}

}  // namespace sherd::testing
