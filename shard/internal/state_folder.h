#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "sherd/shard/internal/state_manifest.h"
#include "sherd/shard/state.h"

namespace sherd::internal {

// "step-00000042": states sort by name.
std::string StateFolderName(int64_t step);
// Where a state is written before it has its name: beside its place, hidden.
std::string TemporaryFolderName(const std::string& place);

// The complete states below `root`, by step; those whose removal was interrupted are not.
// Errors: what the system says; a folder that does not exist has none.
absl::StatusOr<std::map<int64_t, std::string>> StatesIn(const std::string& root);

// Makes an empty folder for a save, and `root` if need be; what saves that were killed left goes.
// Errors: what the system says, naming the folder.
absl::Status MakeTemporaryFolder(const std::string& root, const std::string& folder);

// Writes the manifest and renames `folder` to `place`, in place of a state of the same step.
// Errors: kFailedPrecondition naming the rank whose file is not there; what the system says.
absl::Status PublishState(const std::string& folder, const std::string& place,
                          const Manifest& manifest);

// Removes what SaveOptions do not keep beside the state of `newest`. What cannot be removed stays.
void RemoveOldStates(const std::string& root, const SaveOptions& options, int64_t newest);

// Removes a folder with its files; its manifest goes first, so that it is no state meanwhile.
void RemoveFolder(const std::string& folder);

}  // namespace sherd::internal
