#include <charconv>
#include <cmath>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/json_text.h"
#include "sherd/runtime/io/json.h"

namespace sherd {
namespace {

// The shortest text that reads as the same double; with a fraction where it would read as an
// integer.
std::string DoubleText(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  std::string digits(text, end);
  if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
  return digits;
}

class Writer {
 public:
  std::string text;

  void Value(const Json& json, int depth) {
    std::visit([&](const auto& value) { Write(value, depth); }, json.value);
  }

 private:
  void Write(std::nullptr_t, int) { text += "null"; }
  void Write(bool value, int) { text += value ? "true" : "false"; }
  void Write(int64_t value, int) { absl::StrAppend(&text, value); }
  void Write(double value, int) { text += DoubleText(value); }
  void Write(const std::string& value, int) { text += JsonQuoted(value); }
  void Write(const JsonArray& values, int depth) {
    if (values.empty()) return text += "[]", void();
    const char* before = "[";
    for (const Json& value : values) {
      Line(before, depth + 1);
      Value(value, depth + 1);
      before = ",";
    }
    Line("", depth);
    text += "]";
  }
  void Write(const JsonObject& values, int depth) {
    if (values.empty()) return text += "{}", void();
    const char* before = "{";
    for (const auto& [key, value] : values) {
      Line(before, depth + 1);
      absl::StrAppend(&text, JsonQuoted(key), ": ");
      Value(value, depth + 1);
      before = ",";
    }
    Line("", depth);
    text += "}";
  }
  void Line(const char* before, int depth) {
    absl::StrAppend(&text, before, "\n");
    text.append(static_cast<size_t>(2 * depth), ' ');
  }
};

}  // namespace

std::string WriteJson(const Json& json) {
  Writer writer;
  writer.Value(json, 0);
  return std::move(writer.text);
}

}  // namespace sherd
