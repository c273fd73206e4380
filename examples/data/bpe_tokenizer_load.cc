// Files of BpeTokenizer. What a file says that is not read here, is checked to mean nothing.
#include <filesystem>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "data/bpe_tokenizer.h"
#include "data/json_fields.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/mapped_file.h"

namespace data {
namespace {

using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;

constexpr char kWhat[] = "tokenizer";

void ReadVocabulary(const JsonObject& object, const std::string& where, Fields& fields,
                    BpeTokenizer::Contents& contents) {
  for (const auto& [token, value] : object) {
    const auto* const id = std::get_if<int64_t>(&value.value);
    if (id == nullptr) return fields.Fail(where + token, "has no integer");
    contents.vocabulary.emplace(token, ClampedId(*id));
  }
}

// "left right"; the number is for messages.
void AddMerge(std::string_view line, size_t number, Fields& fields,
              BpeTokenizer::Contents& contents) {
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != line.npos) {
    return fields.Fail(absl::StrCat("merge ", number),
                       absl::StrCat("is '", std::string(line), "', not two tokens"));
  }
  contents.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
}

void ReadMerges(const JsonArray& merges, Fields& fields, BpeTokenizer::Contents& contents) {
  for (const Json& merge : merges) {
    const size_t number = contents.merges.size();
    if (const auto* const line = std::get_if<std::string>(&merge.value)) {
      AddMerge(*line, number, fields, contents);
    } else if (const auto* const pair = std::get_if<JsonArray>(&merge.value);
               pair != nullptr && pair->size() == 2 &&
               std::holds_alternative<std::string>((*pair)[0].value) &&
               std::holds_alternative<std::string>((*pair)[1].value)) {
      contents.merges.emplace_back(std::get<std::string>((*pair)[0].value),
                                   std::get<std::string>((*pair)[1].value));
    } else {
      fields.Fail(absl::StrCat("model.merges[", number, "]"), "is neither a string nor a pair");
    }
    if (!fields.ok()) return;
  }
}

void ReadModel(const JsonObject& model, Fields& fields, BpeTokenizer::Contents& contents) {
  const std::string where = "model.";
  fields.Only(model, where,
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  // Old files have no type.
  if (model.contains("type") &&
      fields.Get<std::string>(model, where, "type", "a string") != "BPE") {
    return fields.Unsupported("model.type", Fields::At(model, "type"));
  }
  fields.Nothing(
      model, where,
      {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"});
  contents.rules.ignore_merges = fields.Flag(model, where, "ignore_merges", false);
  ReadVocabulary(fields.Get<JsonObject>(model, where, "vocab", "an object"), "model.vocab.", fields,
                 contents);
  ReadMerges(fields.Get<JsonArray>(model, where, "merges", "an array"), fields, contents);
  if (Fields::Absent(model, "unk_token")) return;
  const std::string token = fields.Get<std::string>(model, where, "unk_token", "a string");
  const auto found = contents.vocabulary.find(token);
  if (found == contents.vocabulary.end()) {
    return fields.Fail("model.unk_token", absl::StrCat("is '", token, "', which is no token"));
  }
  contents.rules.unknown = found->second;
}

void ReadByteLevel(const JsonObject& object, const std::string& where, Fields& fields,
                   BpeTokenizer::Rules& rules) {
  fields.Only(object, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  rules.add_prefix_space = fields.Flag(object, where, "add_prefix_space", true);
  rules.use_regex = fields.Flag(object, where, "use_regex", true);
}

// ByteLevel, or a Sequence of Digits and ByteLevel.
void ReadPreTokenizer(const Json& json, Fields& fields, BpeTokenizer::Rules& rules) {
  const std::string name = "pre_tokenizer";
  const auto* const object = std::get_if<JsonObject>(&json.value);
  if (object == nullptr) return fields.Unsupported(name, json);
  const std::string type = fields.Get<std::string>(*object, name + ".", "type", "a string");
  if (type == "ByteLevel") return ReadByteLevel(*object, name + ".", fields, rules);
  if (type != "Sequence") return fields.Unsupported(name, json);
  const JsonArray parts = fields.Get<JsonArray>(*object, name + ".", "pretokenizers", "an array");
  for (size_t i = 0; i < parts.size() && fields.ok(); ++i) {
    const std::string part = absl::StrCat(name, ".pretokenizers[", i, "]");
    const auto* const of = std::get_if<JsonObject>(&parts[i].value);
    if (of == nullptr) return fields.Unsupported(part, parts[i]);
    const std::string kind = fields.Get<std::string>(*of, part + ".", "type", "a string");
    const bool last = i + 1 == parts.size();
    if (kind == "ByteLevel" && last) {
      ReadByteLevel(*of, part + ".", fields, rules);
    } else if (kind == "Digits" && !last) {
      fields.Only(*of, part + ".", {"type", "individual_digits"});
      rules.individual_digits = fields.Flag(*of, part + ".", "individual_digits", false);
      if (!rules.individual_digits) {
        fields.Unsupported(part + ".individual_digits", Fields::At(*of, "individual_digits"));
      }
    } else {
      fields.Unsupported(part, parts[i]);
    }
  }
  if (parts.empty()) fields.Fail(name + ".pretokenizers", "is empty");
}

// A part that may be missing, or be of ByteLevel, which does nothing to ids.
void CheckByteLevel(const JsonObject& object, const std::string& key, Fields& fields) {
  const Json& json = Fields::At(object, key);
  if (std::holds_alternative<std::nullptr_t>(json.value)) return;
  const auto* const part = std::get_if<JsonObject>(&json.value);
  if (part == nullptr ||
      fields.Get<std::string>(*part, key + ".", "type", "a string") != "ByteLevel") {
    fields.Unsupported(key, json);
  }
}

absl::StatusOr<BpeTokenizer> Named(const std::string& file,
                                   const BpeTokenizer::Contents& contents) {
  absl::StatusOr<BpeTokenizer> tokenizer = BpeTokenizer::Make(contents);
  if (tokenizer.ok()) return tokenizer;
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer ", file, ": ", std::string(tokenizer.status().message())));
}

absl::StatusOr<BpeTokenizer> LoadTokenizerJson(const std::string& file) {
  const absl::StatusOr<JsonObject> object = ReadJsonObject(kWhat, file);
  if (!object.ok()) return object.status();
  Fields fields(kWhat, file);
  BpeTokenizer::Contents contents;
  fields.Only(*object, "",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
  fields.Nothing(*object, "", {"truncation", "padding", "normalizer"});
  CheckByteLevel(*object, "post_processor", fields);
  CheckByteLevel(*object, "decoder", fields);
  ReadPreTokenizer(Fields::At(*object, "pre_tokenizer"), fields, contents.rules);
  contents.added = ReadAddedTokens(*object, fields);
  // Last, since it is long.
  if (fields.ok()) {
    ReadModel(fields.Get<JsonObject>(*object, "", "model", "an object"), fields, contents);
  }
  if (!fields.ok()) return fields.status();
  return Named(file, contents);
}

absl::StatusOr<BpeTokenizer> LoadVocabularyAndMerges(const std::string& vocabulary,
                                                     const std::string& merges) {
  const absl::StatusOr<JsonObject> object = ReadJsonObject(kWhat, vocabulary);
  if (!object.ok()) return object.status();
  const absl::StatusOr<sherd::MappedFile> mapped = sherd::MappedFile::Open(kWhat, merges);
  if (!mapped.ok()) return mapped.status();
  BpeTokenizer::Contents contents;
  Fields fields(kWhat, vocabulary);
  ReadVocabulary(*object, "token ", fields, contents);
  if (!fields.ok()) return fields.status();
  Fields lines(kWhat, merges);
  std::string_view rest = mapped->text();
  while (!rest.empty() && lines.ok()) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    AddMerge(line, contents.merges.size(), lines, contents);
  }
  if (!lines.ok()) return lines.status();
  constexpr char kEnd[] = "<|endoftext|>";
  if (const auto found = contents.vocabulary.find(kEnd); found != contents.vocabulary.end()) {
    contents.added.push_back({.id = found->second, .content = kEnd, .special = true});
  }
  return Named(vocabulary, contents);
}

}  // namespace

absl::StatusOr<BpeTokenizer> BpeTokenizer::Load(const std::string& folder_or_file) {
  const std::filesystem::path path = folder_or_file;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return LoadTokenizerJson(folder_or_file);
  const std::string json = path / "tokenizer.json", vocabulary = path / "vocab.json";
  const bool old =
      std::filesystem::exists(vocabulary, error) && !std::filesystem::exists(json, error);
  return old ? LoadVocabularyAndMerges(vocabulary, path / "merges.txt") : LoadTokenizerJson(json);
}

}  // namespace data
