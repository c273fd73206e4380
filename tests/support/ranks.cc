#include "tests/support/ranks.h"

#include <utility>

namespace sherd::testing {

void RunRanks(int world_size, const std::function<void(World&)>& body, RankOptions options) {
  RunRanksOver([](std::shared_ptr<ProcessGroup> group) { return group; }, world_size, body,
               std::move(options));
}

}  // namespace sherd::testing
