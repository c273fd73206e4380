#include "sherd/shard/internal/state_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/runtime/base/new_file.h"

namespace sherd::internal {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step-";
constexpr char kHidden[] = ".step-";
constexpr char kPartial[] = ".partial";

absl::Status Failed(const std::string& folder, const std::string& what, std::error_code error) {
  const absl::StatusCode code =
      error == std::errc::no_space_on_device ? absl::StatusCode::kResourceExhausted
      : error == std::errc::permission_denied || error == std::errc::read_only_file_system
          ? absl::StatusCode::kPermissionDenied
          : absl::StatusCode::kInternal;
  return absl::Status(code,
                      absl::StrCat("folder ", folder, " cannot be ", what, ": ", error.message()));
}

// Puts `from` in the place of `to`, a folder that exists, at once; `from` is then what `to` was.
std::error_code Exchange(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return {};
  return {errno, std::generic_category()};
}

std::error_code Flush(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return {errno, std::generic_category()};
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  return {error, std::generic_category()};
}

// The files that pieces are in.
std::set<int> RanksWithPieces(const Manifest& manifest) {
  std::set<int> ranks;
  for (const auto& [name, parameter] : manifest.parameters) {
    for (const auto& [key, tensor] : parameter.tensors) {
      for (const StatePiece& piece : tensor.pieces) ranks.insert(piece.rank);
    }
  }
  return ranks;
}

}  // namespace

std::string StateFolderName(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::string TemporaryFolderName(const std::string& place) {
  const fs::path path(place);
  return (path.parent_path() / absl::StrCat(".", path.filename().string(), kPartial)).string();
}

absl::StatusOr<std::map<int64_t, std::string>> StatesIn(const std::string& root) {
  std::map<int64_t, std::string> states;
  std::error_code error, ignored;
  if (!fs::exists(root, error)) return states;
  fs::directory_iterator folder(root, error);
  for (const fs::directory_iterator end; !error && folder != end; folder.increment(error)) {
    const std::string name = folder->path().filename().string();
    int64_t step = 0;
    if (!absl::StartsWith(name, kPrefix) ||
        !absl::SimpleAtoi(name.substr(sizeof(kPrefix) - 1), &step) ||
        !fs::exists(folder->path() / kManifestName, ignored)) {
      continue;
    }
    states[step] = folder->path().string();
  }
  if (error) return Failed(root, "read", error);
  return states;
}

absl::Status MakeTemporaryFolder(const std::string& root, const std::string& folder) {
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return Failed(root, "made", error);
  fs::directory_iterator entries(root, error);
  if (error) return Failed(root, "read", error);
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    const bool partial = absl::StartsWith(name, kHidden) && absl::EndsWith(name, kPartial);
    const bool half = absl::StartsWith(name, kPrefix) && entry.is_directory(error) &&
                      !fs::exists(entry.path() / kManifestName, error);
    if (partial || half) RemoveFolder(entry.path().string());
  }
  if (fs::create_directory(folder, error)) return absl::OkStatus();
  return Failed(folder, "made", error ? error : std::make_error_code(std::errc::file_exists));
}

absl::Status PublishState(const std::string& folder, const std::string& place,
                          const Manifest& manifest) {
  std::error_code error;
  for (int rank : RanksWithPieces(manifest)) {
    const fs::path file = fs::path(folder) / PieceFileName(rank);
    if (fs::exists(file, error)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " wrote ", file.string(),
                     ", which is not there: all ranks need one file system for states"));
  }
  absl::StatusOr<NewFile> file = NewFile::Create((fs::path(folder) / kManifestName).string());
  if (!file.ok()) return file.status();
  if (absl::Status written = file->Append(ManifestJson(manifest)); !written.ok()) return written;
  if (absl::Status published = file->Publish(); !published.ok()) return published;
  const bool replaces = fs::exists(place, error);
  if (replaces) {
    error = Exchange(folder, place);
  } else {
    fs::rename(folder, place, error);
  }
  if (error) return Failed(folder, "given its name", error);
  if (replaces) RemoveFolder(folder);
  const std::string root = fs::path(place).parent_path().string();
  if (error = Flush(root.empty() ? "." : root); error) {
    return Failed(root, "flushed to the disk", error);
  }
  return absl::OkStatus();
}

void RemoveOldStates(const std::string& root, const SaveOptions& options, int64_t newest) {
  if (options.keep <= 0) return;
  const auto states = StatesIn(root);
  if (!states.ok()) return;
  int64_t kept = 0;
  for (auto state = states->rbegin(); state != states->rend(); ++state) {
    // States of later steps are those of a run that went on from an earlier one.
    if (state->first > newest) continue;
    if (kept < options.keep) {
      ++kept;
      continue;
    }
    if (options.keep_every > 0 && state->first % options.keep_every == 0) continue;
    RemoveFolder(state->second);
  }
}

void RemoveFolder(const std::string& folder) {
  std::error_code ignored;
  fs::remove(fs::path(folder) / kManifestName, ignored);
  fs::remove_all(folder, ignored);
}

}  // namespace sherd::internal
