#include "sherd/runtime/io/safetensors_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/json_text.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexFile[] = "model.safetensors.index.json";

// The bytes of a tensor; nothing for a shape that has none.
std::optional<int64_t> BytesOf(const SafetensorsSpec& spec) {
  int64_t bytes = SizeOf(spec.dtype);
  for (int64_t extent : spec.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<SafetensorsFolderWriter> SafetensorsFolderWriter::Create(
    const std::string& folder, std::vector<SafetensorsSpec> tensors,
    const SafetensorsFolderOptions& options) {
  SafetensorsFolderWriter writer(folder, options);
  if (absl::Status split = writer.Split(std::move(tensors)); !split.ok()) return split;
  if (absl::Status good = Check(folder); !good.ok()) return good;
  if (absl::Status begun = writer.Begin(); !begun.ok()) return begun;
  return writer;
}

absl::Status SafetensorsFolderWriter::Split(std::vector<SafetensorsSpec> tensors) {
  if (options_.max_file_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("folder ", folder_, ": max_file_bytes is ", options_.max_file_bytes));
  }
  parts_.emplace_back();
  for (SafetensorsSpec& spec : tensors) {
    const std::optional<int64_t> bytes = BytesOf(spec);
    if (!bytes) {
      return absl::InvalidArgumentError(absl::StrCat("folder ", folder_, ": tensor '", spec.name,
                                                     "' cannot have shape [",
                                                     absl::StrJoin(spec.shape, ", "), "]"));
    }
    if (!parts_.back().tensors.empty() && *bytes > options_.max_file_bytes - parts_.back().bytes) {
      parts_.emplace_back();
    }
    parts_.back().bytes += *bytes;
    parts_.back().tensors.push_back(std::move(spec));
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].file = parts_.size() == 1
                         ? "model.safetensors"
                         : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, parts_.size());
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFolderWriter::Check(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  fs::directory_iterator files;
  if (!error) files = fs::directory_iterator(folder, error);
  if (error) {
    return absl::Status(
        error == std::errc::permission_denied ? absl::StatusCode::kPermissionDenied
                                              : absl::StatusCode::kFailedPrecondition,
        absl::StrCat("folder ", folder, " cannot be made or read: ", error.message()));
  }
  for (const fs::directory_entry& file : files) {
    const std::string name = file.path().filename().string();
    if (name != kIndexFile && !(name.starts_with("model") && name.ends_with(".safetensors"))) {
      continue;
    }
    return absl::AlreadyExistsError(absl::StrCat("folder ", folder, " has ", name,
                                                 " already: remove it, or take another folder"));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFolderWriter::Begin() {
  const Part& part = parts_[begun_];
  absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(
      (fs::path(folder_) / part.file).string(), part.tensors, options_.metadata);
  if (!writer.ok()) return writer.status();
  writer_.emplace(*std::move(writer));
  left_ = part.bytes;
  ++begun_;
  return absl::OkStatus();
}

absl::Status SafetensorsFolderWriter::Append(std::span<const uint8_t> bytes) {
  while (static_cast<int64_t>(bytes.size()) > left_ && begun_ < parts_.size()) {
    const auto head = static_cast<size_t>(left_);
    if (absl::Status written = writer_->Append(bytes.subspan(0, head)); !written.ok()) {
      return written;
    }
    if (absl::Status closed = writer_->Close(); !closed.ok()) return closed;
    if (absl::Status begun = Begin(); !begun.ok()) return begun;
    bytes = bytes.subspan(head);
  }
  absl::Status written = writer_->Append(bytes);
  if (written.ok()) left_ -= static_cast<int64_t>(bytes.size());
  return written;
}

absl::StatusOr<std::vector<std::string>> SafetensorsFolderWriter::Close() {
  if (begun_ < parts_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("folder ", folder_, ": ", left_,
                                                      " bytes of file ", begun_, " of ",
                                                      parts_.size(), " were not appended"));
  }
  if (absl::Status closed = writer_->Close(); !closed.ok()) return closed;
  std::vector<std::string> names;
  for (const Part& part : parts_) names.push_back(part.file);
  if (parts_.size() == 1) return names;
  if (absl::Status written = WriteIndex(); !written.ok()) return written;
  names.emplace_back(kIndexFile);
  return names;
}

absl::Status SafetensorsFolderWriter::WriteIndex() const {
  std::map<std::string, std::string> map;
  int64_t total = 0;
  for (const Part& part : parts_) {
    total += part.bytes;
    for (const SafetensorsSpec& spec : part.tensors) map.emplace(spec.name, part.file);
  }
  const std::string text = absl::StrCat(
      "{\n  \"metadata\": {\n    \"total_size\": ", total, "\n  },\n  \"weight_map\": {\n",
      absl::StrJoin(map, ",\n",
                    [](std::string* out, const auto& entry) {
                      absl::StrAppend(out, "    ", JsonQuoted(entry.first), ": ",
                                      JsonQuoted(entry.second));
                    }),
      "\n  }\n}\n");
  absl::StatusOr<NewFile> file = NewFile::Create((fs::path(folder_) / kIndexFile).string());
  if (!file.ok()) return file.status();
  if (absl::Status written = file->Append(text); !written.ok()) return written;
  return file->Publish();
}

}  // namespace sherd
