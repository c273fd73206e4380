#include "sherd/runtime/base/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

// Linux writes at most 2^31 - 4096 bytes at once.
constexpr size_t kMostAtOnce = size_t{1} << 30;

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kDataLoss;
  }
}

// Makes a rename in `folder` last. Systems of files that cannot flush a folder need not.
int FlushFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  return error;
}

}  // namespace

NewFile::NewFile(std::string name, std::string temporary, int descriptor)
    : name_(std::move(name)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

NewFile::NewFile(NewFile&& other) noexcept
    : name_(std::move(other.name_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(temporary_, other.temporary_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

NewFile::~NewFile() { Drop(); }

void NewFile::Drop() noexcept {
  if (descriptor_ < 0) return;
  close(std::exchange(descriptor_, -1));
  unlink(temporary_.c_str());
}

absl::Status NewFile::Failed(const std::string& what, int error) const {
  return absl::Status(CodeOf(error),
                      absl::StrCat("file ", name_, " ", what, ": ", std::strerror(error)));
}

absl::StatusOr<NewFile> NewFile::Create(const std::string& name, mode_t mode) {
  std::error_code ignored;
  if (std::filesystem::is_directory(name, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("file ", name, " is a folder"));
  }
  NewFile file(name, absl::StrCat(name, ".", getpid(), ".tmp"), -1);
  // A link in its place is not followed; what a process of the same number left is replaced.
  unlink(file.temporary_.c_str());
  file.descriptor_ =
      open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (file.descriptor_ < 0) return file.Failed("cannot be made", errno);
  return file;
}

absl::Status NewFile::Append(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("cannot be written", errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status NewFile::Append(std::string_view text) {
  return Append({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

absl::Status NewFile::Publish() {
  if (fsync(descriptor_) != 0) return Failed("cannot be flushed to the disk", errno);
  // close() tells of late failures, as those of a network's file system.
  if (close(std::exchange(descriptor_, -1)) != 0) {
    absl::Status failed = Failed("cannot be closed", errno);
    unlink(temporary_.c_str());
    return failed;
  }
  if (std::rename(temporary_.c_str(), name_.c_str()) != 0) {
    absl::Status failed = Failed("cannot be given its name", errno);
    unlink(temporary_.c_str());
    return failed;
  }
  const std::string folder = std::filesystem::path(name_).parent_path().string();
  if (const int error = FlushFolder(folder.empty() ? "." : folder); error != 0) {
    return Failed("is in a folder that cannot be flushed to the disk", error);
  }
  return absl::OkStatus();
}

absl::Status WriteWholeFile(const std::string& name, std::string_view contents) {
  absl::StatusOr<NewFile> file = NewFile::Create(name, 0600);
  if (!file.ok()) return file.status();
  const absl::Status written = file->Append(contents);
  return written.ok() ? file->Publish() : written;
}

}  // namespace sherd
