#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace sherd {

struct Json;
using JsonArray = std::vector<Json>;
using JsonObject = std::map<std::string, Json, std::less<>>;

// A JSON value. Numbers without fraction and exponent that fit are int64_t, all others double.
struct Json {
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, JsonArray, JsonObject> value;

  // "null", "a boolean", "an integer", "a number", "a string", "an array" or "an object".
  const char* kind() const;
};

// Reads one JSON value by the letter of RFC 8259, with nothing but white space around it.
//
// Cost: memory in proportion to the text, and at most 64 nested values, so hostile texts end in
// errors. Errors: kInvalidArgument with the column, from 1 in bytes: no JSON, bad UTF-8, half a
// surrogate pair, a key that comes twice, a number beyond double, nesting too deep.
absl::StatusOr<Json> ParseJson(std::string_view text);

// Returns the value as JSON, keys in order, objects and arrays over several lines, indented by two
// spaces: what ParseJson reads as the same value. A double keeps its value and stays a double.
// Bytes that are not UTF-8 become U+FFFD. REQUIRES: numbers are finite.
std::string WriteJson(const Json& json);

}  // namespace sherd
