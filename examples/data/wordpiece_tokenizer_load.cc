// Files of WordPieceTokenizer. What a tokenizer.json says that is not read here, is checked to mean
// nothing.
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "data/json_fields.h"
#include "data/wordpiece_tokenizer.h"
#include "sherd/runtime/base/utf8.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/mapped_file.h"

namespace data {
namespace {

using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;
using Contents = WordPieceTokenizer::Contents;

constexpr char kWhat[] = "tokenizer";

// What the files beside a vocabulary say; what they do not say is empty.
struct Config {
  std::optional<bool> lowercase, chinese, accents;
  std::map<std::string, std::string> tokens;  // by the name of what they are for: "pad_token"
  std::vector<AddedToken> added;
  std::string tokenizer_class;
};

// A boolean that may be missing or null.
std::optional<bool> MaybeFlag(const JsonObject& object, const std::string& where,
                              const std::string& key, Fields& fields) {
  if (Fields::Absent(object, key)) return std::nullopt;
  return fields.Get<bool>(object, where, key, "a boolean or null");
}

// An object that names its type. Returns null, having failed, for anything else and other types.
const JsonObject* Typed(const JsonObject& object, const std::string& key,
                        std::initializer_list<std::string_view> types, Fields& fields) {
  const Json& json = Fields::At(object, key);
  const auto* const part = std::get_if<JsonObject>(&json.value);
  if (part != nullptr) {
    const std::string type = fields.Get<std::string>(*part, key + ".", "type", "a string");
    for (const std::string_view known : types) {
      if (type == known) return part;
    }
  }
  fields.Unsupported(key, json);
  return nullptr;
}

void ReadVocabulary(const JsonObject& model, Fields& fields, Contents& contents) {
  const auto vocabulary = fields.Get<JsonObject>(model, "model.", "vocab", "an object");
  for (const auto& [token, value] : vocabulary) {
    const auto* const id = std::get_if<int64_t>(&value.value);
    if (id == nullptr) return fields.Fail("model.vocab." + token, "has no integer");
    contents.vocabulary.emplace(token, ClampedId(*id));
  }
}

void ReadModel(const JsonObject& object, Fields& fields, Contents& contents) {
  const JsonObject* const model = Typed(object, "model", {"WordPiece"}, fields);
  if (model == nullptr) return;
  const std::string where = "model.";
  fields.Only(
      *model, where,
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceTokenizer::Rules& rules = contents.rules;
  rules.unknown = fields.Get<std::string>(*model, where, "unk_token", "a string");
  rules.continuing =
      fields.Get<std::string>(*model, where, "continuing_subword_prefix", "a string");
  rules.max_characters =
      fields.Get<int64_t>(*model, where, "max_input_chars_per_word", "an integer");
  ReadVocabulary(*model, fields, contents);
}

void ReadNormalizer(const JsonObject& object, Fields& fields, BertRules& rules) {
  const JsonObject* const part = Typed(object, "normalizer", {"BertNormalizer"}, fields);
  if (part == nullptr) return;
  const std::string where = "normalizer.";
  fields.Only(*part, where,
              {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  rules.clean_text = fields.Flag(*part, where, "clean_text", true);
  rules.handle_chinese_chars = fields.Flag(*part, where, "handle_chinese_chars", true);
  rules.lowercase = fields.Flag(*part, where, "lowercase", true);
  rules.strip_accents = MaybeFlag(*part, where, "strip_accents", fields).value_or(rules.lowercase);
}

// What asks for something to be done on the left is not for encoders.
void CheckDirection(const JsonObject& object, const std::string& key, Fields& fields) {
  if (Fields::Absent(object, key)) return;
  const auto part = fields.Get<JsonObject>(object, "", key, "an object");
  if (Fields::Absent(part, "direction")) return;
  if (fields.Get<std::string>(part, key + ".", "direction", "a string") != "Right") {
    fields.Unsupported(key + ".direction", Fields::At(part, "direction"));
  }
}

// Checks that a token has that id.
void CheckId(const std::string& field, const std::string& token, int64_t id,
             const Contents& contents, Fields& fields) {
  if (const auto found = contents.vocabulary.find(token); found != contents.vocabulary.end()) {
    if (found->second == id) return;
  }
  for (const AddedToken& added : contents.added) {
    if (added.content == token && added.id == id) return;
  }
  fields.Fail(field, absl::StrCat("has id ", id, " for '", token, "', which is not its id"));
}

// ["[SEP]", 102]
std::vector<std::string> ReadPair(const JsonObject& part, const std::string& key,
                                  const Contents& contents, Fields& fields) {
  const std::string where = "post_processor.";
  const auto pair = fields.Get<JsonArray>(part, where, key, "an array");
  const std::string* const token =
      pair.size() == 2 ? std::get_if<std::string>(&pair[0].value) : nullptr;
  const int64_t* const id = pair.size() == 2 ? std::get_if<int64_t>(&pair[1].value) : nullptr;
  if (token == nullptr || id == nullptr) {
    fields.Fail(where + key, "is no pair of a token and its id");
    return {};
  }
  CheckId(where + key, *token, *id, contents, fields);
  return {*token};
}

// The tokens that a template means by a name.
std::vector<std::string> ReadSpecial(const JsonObject& special, const std::string& name,
                                     const Contents& contents, Fields& fields) {
  const std::string where = absl::StrCat("post_processor.special_tokens.", name);
  const auto entry =
      fields.Get<JsonObject>(special, "post_processor.special_tokens.", name, "an object");
  const auto ids = fields.Get<JsonArray>(entry, where + ".", "ids", "an array");
  const auto tokens = fields.Get<JsonArray>(entry, where + ".", "tokens", "an array");
  std::vector<std::string> names;
  for (size_t i = 0; i < tokens.size() && tokens.size() == ids.size(); ++i) {
    const auto* const token = std::get_if<std::string>(&tokens[i].value);
    const auto* const id = std::get_if<int64_t>(&ids[i].value);
    if (token == nullptr || id == nullptr) break;
    CheckId(where, *token, *id, contents, fields);
    names.push_back(*token);
  }
  if (names.size() != ids.size()) fields.Fail(where, "has no id for each token");
  return names;
}

// The entry for one text: special tokens around {"Sequence": {"id": "A"}}.
void ReadTemplate(const JsonObject& part, Fields& fields, Contents& contents) {
  const std::string where = "post_processor.";
  const auto single = fields.Get<JsonArray>(part, where, "single", "an array");
  const auto special = fields.Get<JsonObject>(part, where, "special_tokens", "an object");
  size_t texts = 0;
  for (size_t i = 0; i < single.size() && fields.ok(); ++i) {
    const std::string name = absl::StrCat(where, "single[", i, "]");
    const auto* const object = std::get_if<JsonObject>(&single[i].value);
    const bool text = object != nullptr && object->contains("Sequence");
    if (object == nullptr || object->size() != 1 || (!text && !object->contains("SpecialToken"))) {
      return fields.Unsupported(name, single[i]);
    }
    const std::string kind = text ? "Sequence" : "SpecialToken";
    const std::string in = absl::StrCat(name, ".", kind, ".");
    const auto entry = fields.Get<JsonObject>(*object, name + ".", kind, "an object");
    const auto id = fields.Get<std::string>(entry, in, "id", "a string");
    const auto type = fields.Get<int64_t>(entry, in, "type_id", "an integer");
    if (type != 0) return fields.Unsupported(in + "type_id", Fields::At(entry, "type_id"));
    if (text) {
      if (id != "A" || ++texts > 1) return fields.Unsupported(in + "id", Fields::At(entry, "id"));
      continue;
    }
    auto& side = texts > 0 ? contents.rules.behind : contents.rules.before;
    const std::vector<std::string> tokens = ReadSpecial(special, id, contents, fields);
    side.insert(side.end(), tokens.begin(), tokens.end());
  }
  if (texts == 0) fields.Fail(where + "single", "has no text");
}

// REQUIRES: the vocabulary and the added tokens were read.
void ReadPostProcessor(const JsonObject& object, Fields& fields, Contents& contents) {
  const std::string key = "post_processor", where = key + ".";
  contents.rules.before.clear();
  contents.rules.behind.clear();
  if (Fields::Absent(object, key)) return;
  const JsonObject* const part =
      Typed(object, key, {"TemplateProcessing", "BertProcessing", "RobertaProcessing"}, fields);
  if (part == nullptr) return;
  if (part->contains("single")) {
    fields.Only(*part, where, {"type", "single", "pair", "special_tokens"});
    return ReadTemplate(*part, fields, contents);
  }
  // What RobertaProcessing does besides concerns offsets alone.
  fields.Only(*part, where, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  contents.rules.before = ReadPair(*part, "cls", contents, fields);
  contents.rules.behind = ReadPair(*part, "sep", contents, fields);
}

// The text of a token, which may be an object that tells how it is found.
std::string TokenOf(const JsonObject& object, const std::string& key, Fields& fields) {
  const Json& json = Fields::At(object, key);
  if (const auto* const part = std::get_if<JsonObject>(&json.value)) {
    return fields.Get<std::string>(*part, key + ".", "content", "a string");
  }
  return fields.Get<std::string>(object, "", key, "a string");
}

void ReadDecoder(const JsonObject& object, Fields& fields, Config& config) {
  const std::string key = "added_tokens_decoder";
  if (Fields::Absent(object, key)) return;
  for (const auto& [number, value] : fields.Get<JsonObject>(object, "", key, "an object")) {
    const std::string where = absl::StrCat(key, ".", number);
    const auto* const entry = std::get_if<JsonObject>(&value.value);
    const bool digits = !number.empty() && number.size() < 10 &&
                        number.find_first_not_of("0123456789") == number.npos;
    if (entry == nullptr || !digits) {
      return fields.Fail(where, entry == nullptr ? "is no object" : "is no id");
    }
    AddedToken token;
    token.id = static_cast<int32_t>(std::stol(number));
    ReadAddedToken(*entry, where + ".", fields, token);
    config.added.push_back(std::move(token));
  }
}

// Reads those of the two files that there are; the first that names a token counts.
absl::StatusOr<Config> ReadConfig(const std::filesystem::path& folder) {
  Config config;
  for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string file = folder / name;
    std::error_code error;
    if (!std::filesystem::exists(file, error)) continue;
    const absl::StatusOr<JsonObject> object = ReadJsonObject(kWhat, file);
    if (!object.ok()) return object.status();
    Fields fields(kWhat, file);
    for (const char* const key :
         {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      if (!Fields::Absent(*object, key)) config.tokens.emplace(key, TokenOf(*object, key, fields));
    }
    if (!config.lowercase) config.lowercase = MaybeFlag(*object, "", "do_lower_case", fields);
    if (!config.accents) config.accents = MaybeFlag(*object, "", "strip_accents", fields);
    if (!config.chinese) {
      config.chinese = MaybeFlag(*object, "", "tokenize_chinese_chars", fields);
    }
    if (!Fields::Absent(*object, "tokenizer_class")) {
      config.tokenizer_class = fields.Get<std::string>(*object, "", "tokenizer_class", "a string");
    }
    fields.Nothing(*object, "", {"never_split"});
    if (!fields.Flag(*object, "", "do_basic_tokenize", true)) {
      fields.Unsupported("do_basic_tokenize", Fields::At(*object, "do_basic_tokenize"));
    }
    ReadDecoder(*object, fields, config);
    if (!fields.ok()) return fields.status();
  }
  return config;
}

absl::StatusOr<WordPieceTokenizer> Named(const std::string& file, const Contents& contents) {
  absl::StatusOr<WordPieceTokenizer> tokenizer = WordPieceTokenizer::Make(contents);
  if (tokenizer.ok()) return tokenizer;
  return absl::InvalidArgumentError(
      absl::StrCat(kWhat, " ", file, ": ", std::string(tokenizer.status().message())));
}

// Transformers would follow the configuration, the package tokenizers the file itself.
void CheckAgainst(const Config& config, const BertRules& rules, Fields& fields) {
  const auto same = [&fields](bool value, const char* name, bool other, const char* key) {
    if (value == other) return;
    fields.Fail(absl::StrCat("normalizer.", name),
                absl::StrCat("means ", value ? "true" : "false", ", but ", key,
                             " of tokenizer_config.json ", other ? "true" : "false"));
  };
  same(rules.lowercase, "lowercase", config.lowercase.value_or(rules.lowercase), "do_lower_case");
  same(rules.strip_accents, "strip_accents", config.accents.value_or(rules.strip_accents),
       "strip_accents");
  same(rules.handle_chinese_chars, "handle_chinese_chars",
       config.chinese.value_or(rules.handle_chinese_chars), "tokenize_chinese_chars");
}

absl::StatusOr<WordPieceTokenizer> LoadTokenizerJson(const std::string& file,
                                                     const Config& config) {
  const absl::StatusOr<JsonObject> object = ReadJsonObject(kWhat, file);
  if (!object.ok()) return object.status();
  Fields fields(kWhat, file);
  Contents contents;
  fields.Only(*object, "",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
  CheckDirection(*object, "truncation", fields);
  CheckDirection(*object, "padding", fields);
  ReadNormalizer(*object, fields, contents.rules.text);
  CheckAgainst(config, contents.rules.text, fields);
  if (const auto* const part = Typed(*object, "pre_tokenizer", {"BertPreTokenizer"}, fields)) {
    fields.Only(*part, "pre_tokenizer.", {"type"});
  }
  contents.added = ReadAddedTokens(*object, fields);
  ReadModel(*object, fields, contents);
  ReadPostProcessor(*object, fields, contents);
  if (const auto found = config.tokens.find("pad_token"); found != config.tokens.end()) {
    contents.rules.pad = found->second;
  } else if (!Fields::Absent(*object, "padding")) {
    const auto padding = fields.Get<JsonObject>(*object, "", "padding", "an object");
    contents.rules.pad = fields.Get<std::string>(padding, "padding.", "pad_token", "a string");
  }
  if (!fields.ok()) return fields.status();
  return Named(file, contents);
}

// A token a line; of a token that comes again the last line counts, as in the original.
absl::Status ReadLines(std::string_view text, Fields& fields, Contents& contents) {
  int32_t line = 0;
  while (!text.empty() && fields.ok()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const std::string_view token = text.substr(0, end);
    if (sherd::ValidUtf8Bytes(token) != token.size()) {
      fields.Fail(absl::StrCat("line ", line + 1), "is no UTF-8");
    }
    contents.vocabulary.insert_or_assign(std::string(token), line++);
    text.remove_prefix(end);
    text.remove_prefix(text.starts_with("\r\n") ? 2 : std::min<size_t>(1, text.size()));
  }
  return fields.status();
}

absl::StatusOr<WordPieceTokenizer> LoadVocabulary(const std::filesystem::path& folder,
                                                  const Config& config) {
  const std::string file = folder / "vocab.txt";
  const absl::StatusOr<sherd::MappedFile> mapped = sherd::MappedFile::Open(kWhat, file);
  if (!mapped.ok()) return mapped.status();
  Fields fields(kWhat, file), beside(kWhat, folder / "tokenizer_config.json");
  const std::string& like = config.tokenizer_class;
  const std::string_view kind = std::string_view(like).substr(0, like.find("Tokenizer"));
  if (!like.empty() && kind != "Bert" && kind != "DistilBert" && kind != "Electra") {
    beside.Unsupported("tokenizer_class", Json{like});
    return beside.status();
  }
  std::error_code error;
  if (std::filesystem::exists(folder / "added_tokens.json", error)) {
    fields.Fail("added_tokens.json", "stands beside it, which is not supported");
  }
  Contents contents;
  if (absl::Status read = ReadLines(mapped->text(), fields, contents); !read.ok()) return read;
  contents.added = config.added;
  BertRules& rules = contents.rules.text;
  rules.lowercase = config.lowercase.value_or(true);
  rules.strip_accents = config.accents.value_or(rules.lowercase);
  rules.handle_chinese_chars = config.chinese.value_or(true);
  std::string mask = "[MASK]";
  const std::pair<const char*, std::string*> used[] = {{"unk_token", &contents.rules.unknown},
                                                       {"sep_token", &contents.rules.behind[0]},
                                                       {"pad_token", &contents.rules.pad},
                                                       {"cls_token", &contents.rules.before[0]},
                                                       {"mask_token", &mask}};
  for (const auto& [key, token] : used) {
    if (const auto found = config.tokens.find(key); found != config.tokens.end()) {
      *token = found->second;
    }
    // Those that are missing are left to Make, which needs all but the mask.
    const auto known = contents.vocabulary.find(*token);
    const bool listed =
        std::any_of(contents.added.begin(), contents.added.end(),
                    [name = *token](const AddedToken& added) { return added.content == name; });
    if (known == contents.vocabulary.end() || listed) continue;
    contents.added.push_back({.id = known->second, .content = *token, .special = true});
  }
  return Named(file, contents);
}

}  // namespace

absl::StatusOr<WordPieceTokenizer> WordPieceTokenizer::Load(const std::string& folder_or_file) {
  const std::filesystem::path path = folder_or_file;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return LoadTokenizerJson(folder_or_file, {});
  const absl::StatusOr<Config> config = ReadConfig(path);
  if (!config.ok()) return config.status();
  const bool old = std::filesystem::exists(path / "vocab.txt", error) &&
                   !std::filesystem::exists(path / "tokenizer.json", error);
  return old ? LoadVocabulary(path, *config) : LoadTokenizerJson(path / "tokenizer.json", *config);
}

}  // namespace data
