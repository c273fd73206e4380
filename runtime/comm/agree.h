#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// What every rank hands in, on all ranks in rank order; texts of any bytes and lengths.
//
// COLLECTIVE. Cost: every rank receives size() times the longest text. Errors: those of a
//   collective.
std::vector<std::string> GatherTexts(ProcessGroup& group, const std::string& text,
                                     const ErrorContext& context = {});

// OK if `status` is OK on all ranks, else that of the first rank where it is not, the same on all
// ranks; with "rank N: " before its message unless all ranks say the same. For answers that one
// rank alone may find: a file that it cannot read.
//
// COLLECTIVE. Cost: as GatherTexts. Errors: those of a collective.
absl::Status AgreeOn(ProcessGroup& group, const absl::Status& status,
                     const ErrorContext& context = {});

}  // namespace sherd
