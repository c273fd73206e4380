#include "sherd/runtime/io/safetensors_index.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/mapped_file.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr char kOneFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

absl::Status Wrong(const std::string& index, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("index ", index, " ", why));
}

// Whether a file of that name lies in the folder itself.
bool IsPlainName(std::string_view name) {
  constexpr std::string_view kEnd = ".safetensors";
  return name.size() > kEnd.size() && name.ends_with(kEnd) && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// The file of each tensor. Errors: kInvalidArgument.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(const std::string& name,
                                                              std::string_view text) {
  const absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) {
    return Wrong(name, absl::StrCat("is no JSON: ", std::string(json.status().message())));
  }
  const auto* const object = std::get_if<JsonObject>(&json->value);
  if (object == nullptr) return Wrong(name, absl::StrCat("is ", json->kind(), ", not an object"));
  const auto found = object->find("weight_map");
  if (found == object->end()) return Wrong(name, "has no \"weight_map\"");
  const auto* const map = std::get_if<JsonObject>(&found->second.value);
  if (map == nullptr) return Wrong(name, "has a \"weight_map\" that is no object");
  if (map->empty()) return Wrong(name, "has a \"weight_map\" without tensors");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : *map) {
    const auto* const file = std::get_if<std::string>(&value.value);
    if (file == nullptr) {
      return Wrong(name,
                   absl::StrCat("has tensor '", tensor, "' in ", value.kind(), ", not in a file"));
    }
    if (!IsPlainName(*file)) {
      return Wrong(name, absl::StrCat("has tensor '", tensor, "' in '", *file,
                                      "', which is no safetensors file of its folder"));
    }
    files.emplace(tensor, *file);
  }
  return files;
}

}  // namespace

absl::StatusOr<SafetensorsIndex> SafetensorsIndex::Open(const std::string& folder) {
  SafetensorsIndex index(folder);
  std::error_code ignored;
  const std::string one = (fs::path(folder) / kOneFile).string();
  const std::string several = (fs::path(folder) / kIndexFile).string();
  absl::Status read;
  if (fs::exists(one, ignored)) {
    read = index.Add(kOneFile);
  } else if (fs::exists(several, ignored)) {
    read = index.ReadIndex(several);
  } else {
    return absl::NotFoundError(
        absl::StrCat("folder ", folder, " has neither ", kOneFile, " nor ", kIndexFile));
  }
  if (!read.ok()) return read;
  return index;
}

absl::Status SafetensorsIndex::Add(const std::string& file) {
  absl::StatusOr<SafetensorsFile> opened =
      SafetensorsFile::Open((fs::path(folder_) / file).string());
  if (!opened.ok()) return opened.status();
  files_.push_back(std::make_unique<SafetensorsFile>(*std::move(opened)));
  for (const SafetensorsEntry& entry : files_.back()->entries()) {
    const auto [at, added] = tensors_.emplace(entry.name, Place{files_.back().get(), &entry});
    if (added) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor '", entry.name, "' is in ",
                                                   at->second.file->name(), " and in ",
                                                   files_.back()->name()));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsIndex::ReadIndex(const std::string& name) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open("index", name);
  if (!file.ok()) return file.status();
  const auto weight_map = ParseIndex(name, file->text());
  if (!weight_map.ok()) return weight_map.status();
  std::set<std::string> names;
  for (const auto& [tensor, of] : *weight_map) names.insert(of);
  for (const std::string& of : names) {
    if (absl::Status added = Add(of); !added.ok()) return added;
  }
  return CheckMap(name, *weight_map);
}

absl::Status SafetensorsIndex::CheckMap(
    const std::string& index, const std::map<std::string, std::string>& weight_map) const {
  for (const auto& [tensor, file] : weight_map) {
    const std::string name = (fs::path(folder_) / file).string();
    const auto found = tensors_.find(tensor);
    if (found != tensors_.end() && found->second.file->name() == name) continue;
    return Wrong(index, absl::StrCat("has tensor '", tensor, "' in ", file, ", where it is not",
                                     found != tensors_.end()
                                         ? absl::StrCat(": it is in ", found->second.file->name())
                                         : std::string()));
  }
  for (const auto& [tensor, place] : tensors_) {
    if (weight_map.contains(tensor)) continue;
    return Wrong(index,
                 absl::StrCat("says nothing of tensor '", tensor, "' in ", place.file->name()));
  }
  return absl::OkStatus();
}

const SafetensorsIndex::Place* SafetensorsIndex::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() ? &found->second : nullptr;
}

}  // namespace sherd
