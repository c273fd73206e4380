#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sherd {

// A file that appears under its name whole or not at all.
//
// It is written beside its place under a temporary name, flushed to the disk and renamed.
// Ownership: removes what was not published on destruction.
class NewFile {
 public:
  // `mode` is cut by the process's umask. Errors: kNotFound, kPermissionDenied or
  // kResourceExhausted naming the file and the system's
  //   reason; kInvalidArgument where a folder has the name.
  static absl::StatusOr<NewFile> Create(const std::string& name, mode_t mode = 0666);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  const std::string& name() const { return name_; }
  // Errors: kResourceExhausted for a full disk or quota, else kDataLoss, naming the file and the
  //   system's reason.
  absl::Status Append(std::span<const uint8_t> bytes);
  absl::Status Append(std::string_view text);
  // Flushes to the disk, renames, and flushes the folder. Nothing else may follow.
  // Errors: as Append.
  absl::Status Publish();

 private:
  NewFile(std::string name, std::string temporary, int descriptor);
  absl::Status Failed(const std::string& what, int error) const;
  void Drop() noexcept;

  std::string name_;
  std::string temporary_;
  int descriptor_ = -1;  // -1 when published or moved from
};

// All of it at once, of this user alone. Errors: as NewFile; nothing is left behind then.
absl::Status WriteWholeFile(const std::string& name, std::string_view contents);

}  // namespace sherd
