#include "llm/models/model_config.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llm/models/config_reader.h"
#include "sherd/runtime/io/mapped_file.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;

// The class of each type and head, as "architectures" names it.
struct Architecture {
  const char* model_type;
  Head head;
  const char* name;
};
constexpr Architecture kArchitectures[] = {
    {"llama", Head::kLanguageModel, "LlamaForCausalLM"},
    {"llama", Head::kClassification, "LlamaForSequenceClassification"},
    {"llama", Head::kEmbedding, "LlamaModel"},
    {"mistral", Head::kLanguageModel, "MistralForCausalLM"},
    {"mistral", Head::kClassification, "MistralForSequenceClassification"},
    {"mistral", Head::kEmbedding, "MistralModel"},
    {"qwen2", Head::kLanguageModel, "Qwen2ForCausalLM"},
    {"qwen2", Head::kClassification, "Qwen2ForSequenceClassification"},
    {"qwen2", Head::kEmbedding, "Qwen2Model"},
    {"qwen3", Head::kLanguageModel, "Qwen3ForCausalLM"},
    {"qwen3", Head::kClassification, "Qwen3ForSequenceClassification"},
    {"qwen3", Head::kEmbedding, "Qwen3Model"},
    {"gpt2", Head::kLanguageModel, "GPT2LMHeadModel"},
    {"gpt2", Head::kClassification, "GPT2ForSequenceClassification"},
    {"gpt2", Head::kEmbedding, "GPT2Model"},
    {"bert", Head::kLanguageModel, "BertForMaskedLM"},
    {"bert", Head::kClassification, "BertForSequenceClassification"},
    {"bert", Head::kEmbedding, "BertModel"}};

const char* ArchitectureOf(const std::string& model_type, Head head) {
  for (const Architecture& a : kArchitectures) {
    if (a.model_type == model_type && a.head == head) return a.name;
  }
  return "";
}

// As many as "id2label" names, or "num_labels" says; 2 where neither is there.
int64_t LabelsOf(ConfigReader& reader) {
  const JsonObject* const names = reader.Object("id2label");
  const int64_t named = names != nullptr ? static_cast<int64_t>(names->size()) : 0;
  const int64_t labels = reader.Integer("num_labels", named > 0 ? named : 2);
  if (named > 0 && labels != named) {
    reader.Refuse("num_labels", absl::StrCat("\"id2label\" has ", named));
  }
  return labels;
}

// What the model ends in, unless the caller says.
HeadOptions HeadOf(const std::string& model_type, ConfigReader& reader) {
  HeadOptions head{.labels = LabelsOf(reader)};
  const Json* const json = reader.Find("architectures");
  if (json == nullptr) {
    head.kind = model_type == "bert" ? Head::kEmbedding : Head::kLanguageModel;
    return head;
  }
  const auto* const list = std::get_if<JsonArray>(&json->value);
  const auto* const name = list != nullptr && list->size() == 1
                               ? std::get_if<std::string>(&list->front().value)
                               : nullptr;
  for (const Architecture& a : kArchitectures) {
    if (name == nullptr || a.model_type != model_type || a.name != *name) continue;
    head.kind = a.head;
    return head;
  }
  reader.Refuse("architectures",
                absl::StrCat("known is [\"", ArchitectureOf(model_type, Head::kLanguageModel),
                             "\"], or its like for classification or none"));
  return head;
}

template <typename Sizes>
Sizes With(Sizes sizes, const HeadOptions& head, DType dtype) {
  sizes.head = head;
  sizes.dtype = dtype;
  return sizes;
}

// What `torch_dtype` calls it.
const char* TorchName(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF64:
      return "float64";
    default:
      return "float32";
  }
}

}  // namespace

HeadOptions ModelConfig::head() const {
  return std::visit([](const auto& sizes) { return sizes.head; }, sizes);
}

std::string ModelConfig::model_type() const {
  return std::get<std::string>(fields.find("model_type")->second.value);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder,
                                            const ConfigOptions& options) {
  const std::string name = (std::filesystem::path(folder) / "config.json").string();
  const absl::StatusOr<sherd::MappedFile> file = sherd::MappedFile::Open("config", name);
  if (!file.ok()) return file.status();
  return ParseModelConfig(name, file->text(), options);
}

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& name, std::string_view text,
                                             const ConfigOptions& options) {
  absl::StatusOr<Json> json = sherd::ParseJson(text);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is no JSON: ", std::string(json.status().message())));
  }
  auto* const object = std::get_if<JsonObject>(&json->value);
  if (object == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", json->kind(), ", not an object"));
  }
  ConfigReader reader(name, *object);
  const std::string type = reader.Text("model_type", std::nullopt);
  if (reader.Has("quantization_config")) reader.Refuse("quantization_config", "");
  ModelConfig config;
  const HeadOptions own = options.head ? HeadOptions() : HeadOf(type, reader);
  const HeadOptions head = options.head.value_or(own);
  if (IsLlamaType(type)) {
    LlamaConfig sizes = With(ReadLlamaConfig(type, reader), head, options.dtype);
    if (options.positions > 0) sizes.positions = std::min(sizes.positions, options.positions);
    config.sizes = sizes;
  } else if (type == "gpt2") {
    config.sizes = With(ReadGpt2Config(reader), head, options.dtype);
  } else if (type == "bert") {
    config.sizes = With(ReadBertConfig(reader), head, options.dtype);
  } else {
    ConfigReader of_type(name, *object);
    of_type.Text("model_type", std::nullopt);
    if (of_type.status().ok()) {
      of_type.Refuse("model_type", "known are llama, mistral, qwen2, qwen3, gpt2 and bert");
    }
    return of_type.status();
  }
  if (absl::Status good = reader.status(); !good.ok()) return good;
  config.fields = std::move(*object);
  return config;
}

ModelConfig ConfigOf(const LlamaConfig& config) {
  ModelConfig made{.sizes = config, .fields = LlamaFields(config)};
  made.fields["model_type"] = {LlamaTypeOf(config)};
  return made;
}

std::string ConfigText(const ModelConfig& config, DType dtype) {
  JsonObject fields = config.fields;
  const HeadOptions head = config.head();
  fields["architectures"] = {
      JsonArray{{std::string(ArchitectureOf(config.model_type(), head.kind))}}};
  // Newer readers know it as "dtype".
  fields[fields.contains("dtype") ? "dtype" : "torch_dtype"] = {std::string(TorchName(dtype))};
  if (head.kind == Head::kClassification) {
    const auto named = fields.find("id2label");
    const auto* const names =
        named != fields.end() ? std::get_if<JsonObject>(&named->second.value) : nullptr;
    if (names == nullptr || static_cast<int64_t>(names->size()) != head.labels) {
      JsonObject labels, ids;
      for (int64_t i = 0; i < head.labels; ++i) {
        labels[absl::StrCat(i)] = {absl::StrCat("LABEL_", i)};
        ids[absl::StrCat("LABEL_", i)] = {i};
      }
      fields["id2label"] = {std::move(labels)};
      fields["label2id"] = {std::move(ids)};
      fields.erase("num_labels");
    }
  }
  return sherd::WriteJson({std::move(fields)}) + "\n";
}

}  // namespace llm
