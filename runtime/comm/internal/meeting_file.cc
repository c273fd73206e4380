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
#include "sherd/runtime/comm/internal/socket.h"

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

absl::Status CheckDirectory(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot look at ", path, ": ", LastError()));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        path, " must be a directory that belongs to this user and is closed to others ",
        "(mode 0700)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MeetingFile> MeetingFile::Open(const std::string& temp_directory,
                                              const std::string& job_id) {
  const std::string directory = absl::StrCat(temp_directory, "/sherd-", geteuid());
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("cannot make ", directory, ": ", LastError()));
  }
  if (absl::Status status = CheckDirectory(directory); !status.ok()) return status;
  return MeetingFile(absl::StrCat(directory, "/", FileName(job_id)));
}

absl::Status MeetingFile::Write(const std::string& contents) const {
  const std::string draft = absl::StrCat(path_, ".", getpid());
  unlink(draft.c_str());
  Socket file(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const bool written = file && write(file.fd(), contents.data(), contents.size()) ==
                                   static_cast<ssize_t>(contents.size());
  if (written && rename(draft.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  const std::string reason = LastError();
  unlink(draft.c_str());
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", reason));
}

absl::StatusOr<std::optional<std::string>> MeetingFile::Read() const {
  Socket file(open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<std::string>();
    return absl::UnavailableError(absl::StrCat("cannot read ", path_, ": ", LastError()));
  }
  struct stat info {};
  if (fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(path_, " does not belong to this user"));
  }
  std::string text(kMaxBytes, '\0');
  const ssize_t got = read(file.fd(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return std::optional<std::string>(std::move(text));
}

void MeetingFile::Remove() const { unlink(path_.c_str()); }

}  // namespace sherd::internal
