#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "sherd/runtime/core/address_range.h"

namespace sherd::cuda {

// Addresses of device `index`: reserved at once, memory is mapped behind them page by page (2 MiB
// on the devices there are) as it is used, at most `most_bytes` of it. So free memory is one range
// whatever the sizes were, and fragments of it are given back without copying anything.
//
// Decommit waits for the device first.
absl::StatusOr<std::unique_ptr<AddressRange>> MakeRange(int index, int64_t most_bytes);

}  // namespace sherd::cuda
