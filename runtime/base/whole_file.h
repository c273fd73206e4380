#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sherd {

// Writes a file of this user alone (mode 0600), whole or not at all: readers see the old contents
// or the new ones, also when the process dies meanwhile.
//
// Passes through `path` with the process's number appended, in the same directory, which must
// exist. Threads: safe for different paths.
// Errors: kUnavailable with the path and the system's reason; nothing is left behind then.
absl::Status WriteWholeFile(const std::string& path, std::string_view contents);

}  // namespace sherd
