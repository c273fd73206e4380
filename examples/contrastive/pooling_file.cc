#include "contrastive/pooling_file.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/mapped_file.h"

namespace contrastive {
namespace {

namespace fs = std::filesystem;
using llm::Pooling;
using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;

constexpr char kModules[] = "modules.json";
constexpr char kSentences[] = "sentence_bert_config.json";
constexpr char kPoolingFolder[] = "1_Pooling";

struct PoolingMode {
  const char* field;
  Pooling pooling;
};
constexpr PoolingMode kModes[] = {{"pooling_mode_mean_tokens", Pooling::kMean},
                                  {"pooling_mode_cls_token", Pooling::kFirst},
                                  {"pooling_mode_lasttoken", Pooling::kLast}};
constexpr std::string_view kModePrefix = "pooling_mode_";

// A file of JSON. Its errors name it.
class File {
 public:
  explicit File(fs::path path) : path_(std::move(path)) {}

  bool exists() const {
    std::error_code ignored;
    return fs::exists(path_, ignored);
  }
  absl::StatusOr<Json> Read() const {
    const absl::StatusOr<sherd::MappedFile> file = sherd::MappedFile::Open("file", path_.string());
    if (!file.ok()) return file.status();
    absl::StatusOr<Json> json = sherd::ParseJson(file->text());
    if (!json.ok()) return Error(std::string(json.status().message()));
    return json;
  }
  absl::StatusOr<JsonObject> ReadObject() const {
    absl::StatusOr<Json> json = Read();
    if (!json.ok()) return json.status();
    if (auto* const object = std::get_if<JsonObject>(&json->value)) return std::move(*object);
    return Error(absl::StrCat("is ", json->kind(), ", not an object"));
  }
  absl::Status Error(const std::string& why) const {
    return absl::InvalidArgumentError(absl::StrCat(path_.string(), ": ", why));
  }

 private:
  fs::path path_;
};

// The text at a key of one of the modules; nothing where there is none.
std::optional<std::string> TextAt(const JsonObject& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  const auto* const text = std::get_if<std::string>(&found->second.value);
  return text != nullptr ? std::optional(*text) : std::nullopt;
}

// Whether a path names something below the folder it is relative to.
bool IsInside(const fs::path& path) {
  return !path.empty() && path.is_relative() && std::ranges::count(path, fs::path("..")) == 0;
}

// The folder of the pooling; empty where there is none.
absl::StatusOr<std::string> PoolingFolderOf(const File& modules) {
  const absl::StatusOr<Json> json = modules.Read();
  if (!json.ok()) return json.status();
  const auto* const array = std::get_if<JsonArray>(&json->value);
  if (array == nullptr) return modules.Error(absl::StrCat("is ", json->kind(), ", not an array"));
  std::string pooling;
  for (size_t i = 0; i < array->size(); ++i) {
    const auto* const module = std::get_if<JsonObject>(&(*array)[i].value);
    const auto type = module != nullptr ? TextAt(*module, "type") : std::nullopt;
    const auto path = module != nullptr ? TextAt(*module, "path") : std::nullopt;
    if (!type || !path) {
      return modules.Error(absl::StrCat("[", i, "] has no \"type\" and \"path\" that are strings"));
    }
    if (absl::EndsWith(*type, ".Pooling")) {
      if (!pooling.empty()) return modules.Error("has several modules of type Pooling");
      if (!IsInside(*path)) {
        return modules.Error(
            absl::StrCat("[", i, "].path is '", *path, "', which names no folder in this one"));
      }
      pooling = *path;
    } else if (absl::EndsWith(*type, ".Transformer") && !path->empty()) {
      return modules.Error(absl::StrCat("[", i, "].path is '", *path,
                                        "': the transformer is not in the folder itself"));
    } else if (!absl::EndsWith(*type, ".Transformer") && !absl::EndsWith(*type, ".Normalize")) {
      return modules.Error(absl::StrCat("[", i, "].type is ", *type,
                                        "; known are Transformer, Pooling and Normalize"));
    }
  }
  return pooling;
}

absl::StatusOr<Pooling> ReadPooling(const File& file) {
  const absl::StatusOr<JsonObject> object = file.ReadObject();
  if (!object.ok()) return object.status();
  std::optional<Pooling> found;
  for (const auto& [key, json] : *object) {
    const auto* const on = std::get_if<bool>(&json.value);
    if (!key.starts_with(kModePrefix) || on == nullptr || !*on) continue;
    std::optional<Pooling> known;
    for (const PoolingMode& mode : kModes) {
      if (key == mode.field) known = mode.pooling;
    }
    if (!known) return file.Error(absl::StrCat("\"", key, "\" is true, and is not supported"));
    if (found) return file.Error("several poolings are true; one is supported");
    found = known;
  }
  if (!found) return file.Error("no pooling is true");
  return *found;
}

// Nothing where the file leaves it open.
absl::StatusOr<std::optional<int64_t>> ReadMaxTokens(const File& file) {
  const absl::StatusOr<JsonObject> object = file.ReadObject();
  if (!object.ok()) return object.status();
  std::optional<int64_t> most;
  const auto found = object->find("max_seq_length");
  if (found != object->end() && !std::holds_alternative<std::nullptr_t>(found->second.value)) {
    const auto* const number = std::get_if<int64_t>(&found->second.value);
    if (number == nullptr || *number < 1) {
      return file.Error("\"max_seq_length\" is no positive integer");
    }
    most = *number;
  }
  const auto lower = object->find("do_lower_case");
  const auto* const on = lower != object->end() ? std::get_if<bool>(&lower->second.value) : nullptr;
  if (on != nullptr && *on) {
    return file.Error("\"do_lower_case\" is true; the tokenizer's own is supported");
  }
  return most;
}

}  // namespace

absl::StatusOr<FolderPooling> ReadFolderPooling(const std::string& folder) {
  const fs::path root(folder);
  FolderPooling read;
  if (const File modules(root / kModules); modules.exists()) {
    const absl::StatusOr<std::string> path = PoolingFolderOf(modules);
    if (!path.ok()) return path.status();
    if (path->empty()) return modules.Error("has no module of type Pooling");
    const absl::StatusOr<Pooling> pooling = ReadPooling(File(root / *path / "config.json"));
    if (!pooling.ok()) return pooling.status();
    read.pooling = *pooling;
  }
  if (const File sentences(root / kSentences); sentences.exists()) {
    const auto most = ReadMaxTokens(sentences);
    if (!most.ok()) return most.status();
    read.max_tokens = *most;
  }
  return read;
}

std::map<std::string, std::string> FilesOfPooling(const FolderPooling& pooling, int64_t width) {
  JsonArray modules;
  for (const auto& [type, path] :
       {std::pair("Transformer", ""), std::pair("Pooling", kPoolingFolder),
        std::pair("Normalize", "2_Normalize")}) {
    const auto index = static_cast<int64_t>(modules.size());
    modules.emplace_back().value =
        JsonObject{{"idx", Json{index}},
                   {"name", Json{absl::StrCat(index)}},
                   {"path", Json{path}},
                   {"type", Json{absl::StrCat("sentence_transformers.models.", type)}}};
  }
  JsonObject modes = {{"word_embedding_dimension", Json{width}}};
  for (const PoolingMode& mode : kModes) {
    const bool on = mode.pooling == pooling.pooling;
    // Older readers know no last token.
    if (on || mode.pooling != Pooling::kLast) modes[mode.field] = Json{on};
  }
  std::map<std::string, std::string> files = {
      {kModules, sherd::WriteJson(Json{modules}) + "\n"},
      {absl::StrCat(kPoolingFolder, "/config.json"), sherd::WriteJson(Json{modes}) + "\n"}};
  if (pooling.max_tokens) {
    const JsonObject sentences = {{"max_seq_length", Json{*pooling.max_tokens}},
                                  {"do_lower_case", Json{false}}};
    files[kSentences] = sherd::WriteJson(Json{sentences}) + "\n";
  }
  return files;
}

}  // namespace contrastive
