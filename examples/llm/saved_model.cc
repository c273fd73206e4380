#include "llm/saved_model.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "llm/models/pretrained.h"
#include "llm/run_model.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/mapped_file.h"
#include "sherd/shard/state.h"

namespace llm {
namespace {

namespace fs = std::filesystem;
using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;

bool Has(const fs::path& folder, const char* file) {
  std::error_code ignored;
  return fs::exists(folder / file, ignored);
}

// The text at a key; null where there is none.
const std::string* TextAt(const JsonObject& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() ? std::get_if<std::string>(&found->second.value) : nullptr;
}

// One token or several.
std::vector<int64_t> EndTokensOf(const JsonObject& fields) {
  const auto found = fields.find("eos_token_id");
  if (found == fields.end()) return {};
  if (const auto* const one = std::get_if<int64_t>(&found->second.value)) return {*one};
  std::vector<int64_t> tokens;
  if (const auto* const several = std::get_if<JsonArray>(&found->second.value)) {
    for (const Json& json : *several) {
      if (const auto* const token = std::get_if<int64_t>(&json.value)) tokens.push_back(*token);
    }
  }
  return tokens;
}

// States have the dtype they were trained in.
sherd::DType DTypeOf(const std::string& config) {
  const absl::StatusOr<Json> json = sherd::ParseJson(config);
  const auto* const fields = json.ok() ? std::get_if<JsonObject>(&json->value) : nullptr;
  const std::string* const name = fields != nullptr ? TextAt(*fields, "torch_dtype") : nullptr;
  return name != nullptr && *name == "float64" ? sherd::DType::kF64 : sherd::DType::kF32;
}

absl::StatusOr<SavedModel> OfState(const std::string& folder) {
  const std::string name = (fs::path(folder) / "manifest.json").string();
  const absl::StatusOr<sherd::MappedFile> file = sherd::MappedFile::Open("manifest", name);
  if (!file.ok()) return file.status();
  const absl::StatusOr<Json> json = sherd::ParseJson(file->text());
  const auto* const manifest = json.ok() ? std::get_if<JsonObject>(&json->value) : nullptr;
  const auto entries =
      manifest != nullptr ? manifest->find("entries") : JsonObject::const_iterator();
  const auto* const object = manifest != nullptr && entries != manifest->end()
                                 ? std::get_if<JsonObject>(&entries->second.value)
                                 : nullptr;
  const std::string* const config = object != nullptr ? TextAt(*object, kConfigEntry) : nullptr;
  if (config == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("manifest ", name, " has no entry \"",
                                                   kConfigEntry,
                                                   "\" that says which model the state is of"));
  }
  auto parsed =
      ParseModelConfig(absl::StrCat("the config in ", name), *config, {.dtype = DTypeOf(*config)});
  if (!parsed.ok()) return parsed.status();
  SavedModel saved{.folder = folder, .state = true, .config = *std::move(parsed)};
  if (const std::string* const tokenizer = TextAt(*object, kTokenizerEntry)) {
    saved.tokenizer = *tokenizer;
  }
  return saved;
}

absl::StatusOr<SavedModel> OfFolder(const std::string& folder) {
  absl::StatusOr<ModelConfig> config = ReadModelConfig(folder);
  if (!config.ok()) return config.status();
  return SavedModel{.folder = folder,
                    .config = *std::move(config),
                    .tokenizer = HasTokenizer(folder) ? folder : ""};
}

}  // namespace

absl::StatusOr<SavedModel> FindModel(const std::string& path) {
  absl::StatusOr<SavedModel> saved = absl::NotFoundError(absl::StrCat(
      path, " is neither a Hugging Face folder (config.json) nor a saved state (manifest.json), ",
      "and has no states"));
  if (Has(path, "config.json")) {
    saved = OfFolder(path);
  } else if (Has(path, "manifest.json")) {
    saved = OfState(path);
  } else {
    for (const fs::path& root : {fs::path(path), fs::path(path) / "states"}) {
      const auto latest = sherd::LatestState(root.string());
      if (!latest.ok() || !*latest) continue;
      saved = OfState(**latest);
      break;
    }
  }
  if (saved.ok()) saved->end_tokens = EndTokensOf(saved->config.fields);
  return saved;
}

absl::Status LoadModel(const SavedModel& saved, TextModel& model, sherd::ProcessGroup& group) {
  if (!saved.state) return LoadWeights(saved.folder, model, group).status();
  sherd::TrainingState state{.model = &model};
  return sherd::LoadState(saved.folder, state, group).status();
}

}  // namespace llm
