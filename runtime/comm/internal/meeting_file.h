#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sherd::internal {

// A small file by which ranks of one job on one host find each other.
//
// It lies in a directory of this user alone, <temp>/sherd-<uid>, which is refused when anybody else
// owns it or may write to it. Contents appear whole or not at all. A file of an earlier job of the
// same name may still lie there: contents are a hint, to be verified.
class MeetingFile {
 public:
  // `job_id` may be empty: then the parent process names the job.
  // Errors: kPermissionDenied when the directory is not ours alone; kUnavailable otherwise.
  static absl::StatusOr<MeetingFile> Open(const std::string& temp_directory,
                                          const std::string& job_id);

  const std::string& path() const { return path_; }
  absl::Status Write(const std::string& contents) const;
  // Nothing when there is no file. Errors: kPermissionDenied when it is not this user's.
  absl::StatusOr<std::optional<std::string>> Read() const;
  void Remove() const;

 private:
  explicit MeetingFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace sherd::internal
