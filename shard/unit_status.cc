#include "sherd/shard/unit_status.h"

#include <utility>

namespace sherd::status {

absl::StatusOr<std::unique_ptr<Unit>> MakeUnit(std::string name,
                                               std::vector<UnitParameter> parameters,
                                               std::shared_ptr<ShardContext> context,
                                               const UnitOptions& options) noexcept {
  return StatusOrOf([&] {
    return std::make_unique<Unit>(std::move(name), std::move(parameters), std::move(context),
                                  options);
  });
}

}  // namespace sherd::status
