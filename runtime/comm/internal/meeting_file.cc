#include "sherd/runtime/comm/internal/meeting_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace sherd::internal {
namespace {

constexpr size_t kMaxBytes = 4096;

std::string LastError() { return std::generic_category().message(errno); }

// A name of the launcher process: its number and when it started, since numbers come again.
std::string ParentName() {
  const pid_t parent = getppid();
  std::ifstream file(absl::StrCat("/proc/", parent, "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The start is field 22; field 2, the command, ends with the last ')'.
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return absl::StrCat("parent-", parent, "-", field);
}

std::string FileName(const std::string& job_id) {
  std::string name;
  for (char c : job_id.empty() ? ParentName() : job_id) {
    name.push_back(std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_');
  }
  return name.substr(0, 200);
}

absl::Status CheckDirectory(const Socket& directory, const std::string& path) {
  struct stat info {};
  if (fstat(directory.fd(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot look at ", path, ": ", LastError()));
  }
  if (info.st_uid == geteuid() && (info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      path, " must be a directory that belongs to this user and is closed to others (mode 0700)"));
}

}  // namespace

absl::StatusOr<MeetingFile> MeetingFile::Open(const std::string& temp_directory,
                                              const std::string& job_id) {
  const std::string directory = absl::StrCat(temp_directory, "/sherd-", geteuid());
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("cannot make ", directory, ": ", LastError()));
  }
  Socket opened(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) {
    // ELOOP or ENOTDIR: a link, or no directory.
    return absl::PermissionDeniedError(
        absl::StrCat(directory, " must be a directory of this user, not a link: ", LastError()));
  }
  if (absl::Status status = CheckDirectory(opened, directory); !status.ok()) return status;
  std::string name = FileName(job_id);
  std::string path = absl::StrCat(directory, "/", name);
  return MeetingFile(std::move(opened), std::move(path), std::move(name));
}

absl::Status MeetingFile::CheckIsOurs(const struct stat& info) const {
  if (S_ISREG(info.st_mode) && info.st_uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path_, " is not a file of this user: remove it"));
}

absl::Status MeetingFile::Write(const std::string& contents) const {
  struct stat info {};
  if (fstatat(directory_.fd(), name_.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    if (absl::Status status = CheckIsOurs(info); !status.ok()) return status;
  }
  const std::string draft = absl::StrCat(name_, ".", getpid());
  unlinkat(directory_.fd(), draft.c_str(), 0);
  Socket file(openat(directory_.fd(), draft.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const bool written = file && write(file.fd(), contents.data(), contents.size()) ==
                                   static_cast<ssize_t>(contents.size());
  if (written && renameat(directory_.fd(), draft.c_str(), directory_.fd(), name_.c_str()) == 0) {
    return absl::OkStatus();
  }
  const std::string reason = LastError();
  unlinkat(directory_.fd(), draft.c_str(), 0);
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", reason));
}

absl::StatusOr<std::optional<std::string>> MeetingFile::Read() const {
  Socket file(
      openat(directory_.fd(), name_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file) {
    if (errno == ENOENT) return std::optional<std::string>();
    const std::string reason = LastError();
    // A link, say, which was not followed.
    if (fstatat(directory_.fd(), name_.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      if (absl::Status status = CheckIsOurs(info); !status.ok()) return status;
    }
    return absl::UnavailableError(absl::StrCat("cannot read ", path_, ": ", reason));
  }
  if (fstat(file.fd(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot look at ", path_, ": ", LastError()));
  }
  if (absl::Status status = CheckIsOurs(info); !status.ok()) return status;
  std::string text(kMaxBytes, '\0');
  const ssize_t got = read(file.fd(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return std::optional<std::string>(std::move(text));
}

void MeetingFile::Remove() const { unlinkat(directory_.fd(), name_.c_str(), 0); }

}  // namespace sherd::internal
