#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/runtime/comm/internal/socket.h"

namespace sherd::internal {

// A small file by which ranks of one job on one host find each other.
//
// It lies in a directory of this user alone, <temp>/sherd-<uid>, which is refused when anybody else
// owns it or may enter it, or when it is a link. The directory is opened once, so that what is
// checked is what is used. The file is made new, mode 0600, under a name of its own and then
// renamed: contents appear whole or not at all, and a link in its place is never followed. A file
// of an earlier job of the same name may still lie there: contents are a hint, to be verified.
// Movable.
class MeetingFile {
 public:
  // `job_id` may be empty: then the parent process names the job.
  // Errors: kPermissionDenied when the directory is not ours alone; kUnavailable otherwise.
  static absl::StatusOr<MeetingFile> Open(const std::string& temp_directory,
                                          const std::string& job_id);

  // Errors: kPermissionDenied when something else than a file of this user lies in its place.
  absl::Status Write(const std::string& contents) const;
  // Nothing when there is no file. At most 4096 bytes. Errors: as Write.
  absl::StatusOr<std::optional<std::string>> Read() const;
  void Remove() const;

 private:
  MeetingFile(Socket directory, std::string path, std::string name)
      : directory_(std::move(directory)), path_(std::move(path)), name_(std::move(name)) {}
  // Errors: kPermissionDenied unless this is a file of this user.
  absl::Status CheckIsOurs(const struct stat& info) const;

  Socket directory_;
  std::string path_;  // for messages
  std::string name_;  // in the directory
};

}  // namespace sherd::internal
