#include "data/json_lines.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "data/documents.h"
#include "sherd/runtime/io/mapped_file.h"

namespace data {
namespace {

absl::Status CheckIds(const JsonLine& line, const std::string& key, const std::vector<int64_t>& ids,
                      int64_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocabulary) continue;
    if (key == "labels" && ids[i] == kIgnored) continue;
    return line.Error(
        absl::StrCat("\"", key, "\"[", i, "] is ", ids[i], ", outside [0, ", vocabulary, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sample> SampleOf(const JsonLine& line, int64_t vocabulary) {
  Sample sample;
  sample.line = line.number();
  const bool has_text = line.Has("text"), has_tokens = line.Has("tokens");
  if (has_text == has_tokens) {
    return line.Error(has_text ? "has both \"text\" and \"tokens\""
                               : "has neither \"text\" nor \"tokens\"");
  }
  if (has_text) {
    absl::StatusOr<std::string> text = line.Text("text");
    if (!text.ok()) return text.status();
    if (text->empty()) return line.Error("\"text\" is empty");
    sample.text = *std::move(text);
    return sample;
  }
  for (const auto& [key, ids] :
       {std::pair("tokens", &sample.tokens), std::pair("labels", &sample.labels)}) {
    absl::StatusOr<std::vector<int64_t>> read = line.Integers(key);
    if (!read.ok()) return read.status();
    *ids = *std::move(read);
    if (absl::Status status = CheckIds(line, key, *ids, vocabulary); !status.ok()) return status;
  }
  if (sample.tokens.size() != sample.labels.size()) {
    return line.Error(absl::StrCat("has ", sample.tokens.size(), " \"tokens\" but ",
                                   sample.labels.size(), " \"labels\""));
  }
  if (sample.tokens.empty()) return line.Error("\"tokens\" is empty");
  return sample;
}

}  // namespace

JsonLine::JsonLine(std::string file, int64_t line, sherd::JsonObject object)
    : file_(std::move(file)), line_(line), object_(std::move(object)) {}

absl::Status JsonLine::Error(const std::string& why) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ":", line_, ": ", why));
}

absl::StatusOr<const sherd::Json*> JsonLine::Find(const std::string& key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) return Error(absl::StrCat("key \"", key, "\" is missing"));
  return &found->second;
}

absl::StatusOr<std::string> JsonLine::Text(const std::string& key) const {
  const absl::StatusOr<const sherd::Json*> json = Find(key);
  if (!json.ok()) return json.status();
  const auto* const text = std::get_if<std::string>(&(*json)->value);
  if (text == nullptr) {
    return Error(absl::StrCat("\"", key, "\" is ", (*json)->kind(), ", not a string"));
  }
  return *text;
}

template <typename T>
absl::StatusOr<std::vector<T>> JsonLine::ArrayOf(const std::string& key, const char* what) const {
  const absl::StatusOr<const sherd::Json*> json = Find(key);
  if (!json.ok()) return json.status();
  const auto* const array = std::get_if<sherd::JsonArray>(&(*json)->value);
  if (array == nullptr) {
    return Error(absl::StrCat("\"", key, "\" is ", (*json)->kind(), ", not an array"));
  }
  std::vector<T> values;
  values.reserve(array->size());
  for (const sherd::Json& element : *array) {
    const auto* const value = std::get_if<T>(&element.value);
    if (value == nullptr) {
      return Error(
          absl::StrCat("\"", key, "\"[", values.size(), "] is ", element.kind(), ", not ", what));
    }
    values.push_back(*value);
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> JsonLine::Integers(const std::string& key) const {
  return ArrayOf<int64_t>(key, "an integer");
}

absl::StatusOr<std::vector<std::string>> JsonLine::Texts(const std::string& key) const {
  return ArrayOf<std::string>(key, "a string");
}

absl::StatusOr<std::vector<JsonLine>> ReadJsonLines(const std::string& file) {
  const absl::StatusOr<sherd::MappedFile> mapped = sherd::MappedFile::Open("JSON-lines file", file);
  if (!mapped.ok()) return mapped.status();
  std::vector<JsonLine> lines;
  std::string_view rest = mapped->text();
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    absl::StatusOr<sherd::Json> json = sherd::ParseJson(line);
    if (!json.ok()) return JsonLine(file, number, {}).Error(std::string(json.status().message()));
    auto* const object = std::get_if<sherd::JsonObject>(&json->value);
    if (object == nullptr) {
      return JsonLine(file, number, {}).Error(absl::StrCat("is ", json->kind(), ", not an object"));
    }
    lines.emplace_back(file, number, std::move(*object));
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("JSON-lines file ", file, " has no object"));
  }
  return lines;
}

absl::StatusOr<std::vector<Sample>> ReadSamples(const std::string& file, int64_t vocabulary) {
  const absl::StatusOr<std::vector<JsonLine>> lines = ReadJsonLines(file);
  if (!lines.ok()) return lines.status();
  std::vector<Sample> samples;
  samples.reserve(lines->size());
  for (const JsonLine& line : *lines) {
    absl::StatusOr<Sample> sample = SampleOf(line, vocabulary);
    if (!sample.ok()) return sample.status();
    samples.push_back(*std::move(sample));
  }
  return samples;
}

}  // namespace data
