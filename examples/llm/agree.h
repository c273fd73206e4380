#pragma once

#include "absl/status/status.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// OK if `status` is OK on all ranks, else that of the first rank where it is not, the same on all.
// COLLECTIVE. Errors: throws sherd::Error of the world.
absl::Status AgreeOn(sherd::World& world, const absl::Status& status);

}  // namespace llm
