#include "llm/models/config_reader.h"

#include <cmath>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llm {
namespace {

using sherd::Json;
using sherd::JsonObject;

// The value if it is a T; null otherwise.
template <typename T>
const T* As(const Json* json) {
  return json != nullptr ? std::get_if<T>(&json->value) : nullptr;
}

}  // namespace

const Json* ConfigReader::Find(std::string_view field) const {
  const auto found = object_.find(field);
  if (found == object_.end()) return nullptr;
  return std::holds_alternative<std::nullptr_t>(found->second.value) ? nullptr : &found->second;
}

int64_t ConfigReader::Integer(std::string_view field, std::optional<int64_t> missing, int64_t least,
                              int64_t most) {
  const Json* const json = Find(field);
  if (json == nullptr && missing) return *missing;
  const auto* const value = As<int64_t>(json);
  if (value != nullptr && *value >= least && *value <= most) return *value;
  Fail(field, absl::StrCat("an integer from ", least, " to ", most));
  return missing.value_or(least);
}

double ConfigReader::Real(std::string_view field, std::optional<double> missing, double least,
                          double most) {
  const Json* const json = Find(field);
  if (json == nullptr && missing) return *missing;
  std::optional<double> value;
  if (const auto* const integer = As<int64_t>(json)) value = static_cast<double>(*integer);
  if (const auto* const real = As<double>(json)) value = *real;
  if (value && std::isfinite(*value) && *value >= least && *value <= most) return *value;
  Fail(field, absl::StrCat("a number from ", least, " to ", most));
  return missing.value_or(least);
}

bool ConfigReader::Flag(std::string_view field, bool missing) {
  const Json* const json = Find(field);
  if (json == nullptr) return missing;
  if (const auto* const value = As<bool>(json)) return *value;
  Fail(field, "true or false");
  return missing;
}

std::string ConfigReader::Text(std::string_view field, std::optional<std::string> missing) {
  const Json* const json = Find(field);
  if (json == nullptr && missing) return *missing;
  if (const auto* const value = As<std::string>(json)) return *value;
  Fail(field, "a string");
  return missing.value_or("");
}

const JsonObject* ConfigReader::Object(std::string_view field) {
  const Json* const json = Find(field);
  const auto* const value = As<JsonObject>(json);
  if (json != nullptr && value == nullptr) Fail(field, "an object");
  return value;
}

void ConfigReader::Expect(std::string_view field, bool value) {
  if (Flag(field, value) != value) Refuse(field, "");
}

void ConfigReader::Refuse(std::string_view field, std::string_view why) {
  std::string text = absl::StrCat(field_, std::string(field), " is ", ValueText(field),
                                  ", which is not supported");
  if (!why.empty()) absl::StrAppend(&text, ": ", std::string(why));
  wrong_.push_back(std::move(text));
}

void ConfigReader::Add(const ConfigReader& other) {
  wrong_.insert(wrong_.end(), other.wrong_.begin(), other.wrong_.end());
}

void ConfigReader::Fail(std::string_view field, std::string_view wanted) {
  const std::string name = absl::StrCat(field_, std::string(field));
  wrong_.push_back(Has(field)
                       ? absl::StrCat(name, " is ", ValueText(field), ", not ", std::string(wanted))
                       : absl::StrCat(name, " is missing"));
}

std::string ConfigReader::ValueText(std::string_view field) const {
  const Json* const json = Find(field);
  if (json == nullptr) return "absent";
  if (As<JsonObject>(json) != nullptr) return json->kind();
  // One line is enough to know it by.
  std::string text = sherd::WriteJson(*json);
  std::string line;
  for (char c : text) {
    if (c != '\n' && (c != ' ' || line.empty() || line.back() != ' ')) line.push_back(c);
  }
  constexpr size_t kMost = 120;
  if (line.size() > kMost) line = line.substr(0, kMost) + "...";
  return line;
}

absl::Status ConfigReader::status() const {
  if (wrong_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", absl::StrJoin(wrong_, "; ")));
}

}  // namespace llm
