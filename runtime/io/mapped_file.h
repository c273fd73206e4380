#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sherd {

// A file's bytes, mapped for reading: pages come from the disk when they are touched, and ranks of
// one machine share them.
//
// Ownership: unmaps on destruction; spans of it live no longer. Moving leaves them valid.
// Threads: any number may read. REQUIRES: nobody shortens the file meanwhile, since the system
// answers a read behind the new end with SIGBUS.
class MappedFile {
 public:
  // Maps all of `name`, which messages call `what` ("text file", "token file").
  // Errors: kNotFound, kPermissionDenied or kInvalidArgument naming the file that is missing,
  //   unreadable, no regular file or empty.
  static absl::StatusOr<MappedFile> Open(const std::string& what, const std::string& name);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // At least one byte, unless moved from.
  std::span<const uint8_t> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  const std::string& name() const { return name_; }

 private:
  MappedFile(std::string name, std::span<const uint8_t> bytes);

  std::string name_;
  std::span<const uint8_t> bytes_;
};

}  // namespace sherd
