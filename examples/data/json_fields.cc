#include "data/json_fields.h"

#include <algorithm>
#include <utility>

#include "sherd/runtime/io/mapped_file.h"

namespace data {

using sherd::Json;
using sherd::JsonObject;

absl::StatusOr<JsonObject> ReadJsonObject(const std::string& what, const std::string& file) {
  const absl::StatusOr<sherd::MappedFile> mapped = sherd::MappedFile::Open(what, file);
  if (!mapped.ok()) return mapped.status();
  absl::StatusOr<Json> json = sherd::ParseJson(mapped->text());
  Fields fields(what, file);
  if (!json.ok()) {
    fields.Fail("the JSON", absl::StrCat("is wrong at ", std::string(json.status().message())));
    return fields.status();
  }
  auto* const object = std::get_if<JsonObject>(&json->value);
  if (object == nullptr) {
    fields.Fail("the file", absl::StrCat("is ", json->kind(), ", not an object"));
    return fields.status();
  }
  return std::move(*object);
}

void Fields::Fail(const std::string& field, const std::string& why) {
  if (ok()) status_ = absl::InvalidArgumentError(absl::StrCat(begin_, field, " ", why));
}

void Fields::Unsupported(const std::string& field, const Json& value) {
  Fail(field, absl::StrCat("is ", Shown(value), ", which is not supported"));
}

const Json& Fields::At(const JsonObject& object, const std::string& key) {
  static const Json null{nullptr};
  const auto found = object.find(key);
  return found != object.end() ? found->second : null;
}

bool Fields::Absent(const JsonObject& object, const std::string& key) {
  return std::holds_alternative<std::nullptr_t>(At(object, key).value);
}

bool Fields::Flag(const JsonObject& object, const std::string& where, const std::string& key,
                  bool otherwise) {
  if (!object.contains(key)) return otherwise;
  return Get<bool>(object, where, key, "a boolean");
}

void Fields::Nothing(const JsonObject& object, const std::string& where,
                     std::initializer_list<const char*> keys) {
  for (const char* const key : keys) {
    const Json& value = At(object, key);
    const bool* const flag = std::get_if<bool>(&value.value);
    const std::string* const text = std::get_if<std::string>(&value.value);
    if (std::holds_alternative<std::nullptr_t>(value.value) || (flag != nullptr && !*flag) ||
        (text != nullptr && text->empty())) {
      continue;
    }
    Unsupported(where + key, value);
  }
}

void Fields::Only(const JsonObject& object, const std::string& where,
                  std::initializer_list<const char*> keys) {
  for (const auto& [key, value] : object) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) Unsupported(where + key, value);
  }
}

std::string Fields::Shown(const Json& value) {
  if (const auto* const text = std::get_if<std::string>(&value.value)) {
    return absl::StrCat("\"", *text, "\"");
  }
  if (const auto* const number = std::get_if<int64_t>(&value.value)) return absl::StrCat(*number);
  if (const auto* const number = std::get_if<double>(&value.value)) return absl::StrCat(*number);
  if (const auto* const flag = std::get_if<bool>(&value.value)) return *flag ? "true" : "false";
  if (const auto* const object = std::get_if<JsonObject>(&value.value)) {
    const Json& type = At(*object, "type");
    if (std::holds_alternative<std::string>(type.value)) {
      return absl::StrCat("an object of type ", Shown(type));
    }
  }
  return value.kind();
}

}  // namespace data
