#pragma once

#include <string>

#include "absl/status/status.h"

namespace sherd {

// Whether `why` is what a collective, a rendezvous or a store says of other ranks: they aborted,
// ended, were late or were told to stop. A rank that ends for such a reason was not the first to
// fail.
bool FailedElsewhere(const absl::Status& why);

// Writes why this process fails where torchrun's agent looks for it, so that its summary shows the
// text and names the rank that failed first: the one with the earliest time, so reports of what
// failed elsewhere are dated a second later. Call it last, before ending with another code than 0.
//
// `path` is LaunchInfo::error_file; nothing happens when it is "". The file is whole or not there:
// an agent that reads half of one fails itself.
// Errors: those of NewFile, naming the file.
// Source: torch/distributed/elastic/multiprocessing/errors.
absl::Status WriteErrorFile(const std::string& path, const absl::Status& why);

}  // namespace sherd
