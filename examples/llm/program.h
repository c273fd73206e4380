#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// What the programs do around their own work: exit codes, and what they say on stderr.

inline constexpr int kFailure = 1;  // something went wrong
inline constexpr int kUsage = 2;    // nothing was begun, for the command line is wrong

// Says what every rank has found out alike, once, as "NAME: why". Returns `code`.
int Fail(const std::string& name, const sherd::LaunchInfo& launch, const absl::Status& why,
         int code);

// Joins the launch, runs `body` in its world, and leaves together.
//
// `body` returns the exit code, or what all ranks agree on; it may throw sherd::Error, of which the
// other ranks are told. The process gets SIGTERM if its launcher dies. torchrun is told the reason
// of a failure. Returns the exit code of the process.
int RunInWorld(const std::string& name, const sherd::LaunchInfo& launch,
               const sherd::WorldOptions& options,
               const std::function<absl::StatusOr<int>(sherd::World&)>& body);

}  // namespace llm
