#include "sherd/runtime/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sherd {

MappedFile::MappedFile(std::string name, std::span<const uint8_t> bytes)
    : name_(std::move(name)), bytes_(bytes) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : name_(std::move(other.name_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& what, const std::string& name) {
  const std::string file = absl::StrCat(what, " ", name);
  // A FIFO without a writer would wait here for ever.
  const int descriptor = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return absl::NotFoundError(absl::StrCat(file, " cannot be found"));
    }
    return absl::PermissionDeniedError(
        absl::StrCat(file, " cannot be opened: ", std::strerror(error)));
  }
  const absl::Cleanup close_it = [descriptor] { close(descriptor); };
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) {
    return absl::InternalError(absl::StrCat(file, " cannot be examined: ", std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(file, " is a folder"));
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is no regular file"));
  }
  if (status.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(file, " is empty"));
  const auto size = static_cast<size_t>(status.st_size);
  void* const address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file, " of ", size, " bytes cannot be mapped: ", std::strerror(errno)));
  }
  return MappedFile(name, {static_cast<const uint8_t*>(address), size});
}

}  // namespace sherd
