#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/runtime/io/json.h"

namespace data {

// One line of a JSON-lines file. Its errors name file, line and key.
class JsonLine {
 public:
  // Lines count from 1.
  JsonLine(std::string file, int64_t line, sherd::JsonObject object);

  bool Has(const std::string& key) const { return object_.contains(key); }
  const sherd::JsonObject& object() const { return object_; }
  int64_t number() const { return line_; }

  // The string at `key`. Errors: kInvalidArgument when the key is missing or no string.
  absl::StatusOr<std::string> Text(const std::string& key) const;
  // The array of integers at `key`. Errors: kInvalidArgument when the key is missing, no array, or
  // has an element that is no integer, which is named with its place.
  absl::StatusOr<std::vector<int64_t>> Integers(const std::string& key) const;
  // The array of strings at `key`. Errors: likewise.
  absl::StatusOr<std::vector<std::string>> Texts(const std::string& key) const;
  // An error about this line: "file:line: why".
  absl::Status Error(const std::string& why) const;

 private:
  absl::StatusOr<const sherd::Json*> Find(const std::string& key) const;
  template <typename T>
  absl::StatusOr<std::vector<T>> ArrayOf(const std::string& key, const char* what) const;

  std::string file_;
  int64_t line_;
  sherd::JsonObject object_;
};

// Reads a file of one JSON object a line; blank lines are passed over.
//
// Cost: the file is mapped, its values are held in memory.
// Errors: those of MappedFile::Open; kInvalidArgument naming file, line and column of what is no
//   JSON or not UTF-8, naming file and line of what is no object, or the file without any object.
absl::StatusOr<std::vector<JsonLine>> ReadJsonLines(const std::string& file);

// A text, or tokens with what is to be predicted at each.
struct Sample {
  std::string text;             // empty where there are tokens
  std::vector<int64_t> tokens;  // empty where there is a text
  std::vector<int64_t> labels;  // as many as tokens; -100 has no loss
  int64_t line = 0;             // of the file, from 1
};

// Reads lines {"text": ""} or {"tokens": [], "labels": []}, in any mixture.
// Errors: those of ReadJsonLines; kInvalidArgument naming file and line of what has neither or
//   both, of a wrong type, of different numbers of tokens and labels, of none at all, of a token
//   outside [0, vocabulary) and of a label that is neither one of these nor -100.
absl::StatusOr<std::vector<Sample>> ReadSamples(const std::string& file, int64_t vocabulary);

}  // namespace data
