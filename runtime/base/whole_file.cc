#include "sherd/runtime/base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

bool WriteAll(int fd, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, std::string_view contents) {
  const std::string draft = absl::StrCat(path, ".", getpid());
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  bool written = fd >= 0 && WriteAll(fd, contents) && fsync(fd) == 0;
  int reason = errno;
  if (fd >= 0 && close(fd) != 0 && written) {
    written = false;
    reason = errno;
  }
  if (written && rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (written) reason = errno;
  if (fd >= 0) unlink(draft.c_str());
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, ": ", std::generic_category().message(reason)));
}

}  // namespace sherd
