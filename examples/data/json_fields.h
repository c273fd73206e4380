#pragma once

#include <initializer_list>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/io/json.h"

namespace data {

// Reads a file that has one JSON object. Errors: those of MappedFile::Open about `what`, which is
//   what messages call the file; kInvalidArgument naming the file and what is wrong with it.
absl::StatusOr<sherd::JsonObject> ReadJsonObject(const std::string& what, const std::string& file);

// Reads the fields of a file's objects; the first that is wrong leaves its reason, and what comes
// after it returns anything. A field's name in messages is `where` and `key`, "model." and "type".
class Fields {
 public:
  // What messages begin with: "<what> <file>: ".
  Fields(const std::string& what, const std::string& file) : begin_(what + " " + file + ": ") {}

  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  // Keeps "<what> <file>: <field> <why>", unless something else failed before.
  void Fail(const std::string& field, const std::string& why);
  // Fails with "is <value>, which is not supported".
  void Unsupported(const std::string& field, const sherd::Json& value);

  // The value at a key; null where there is none.
  static const sherd::Json& At(const sherd::JsonObject& object, const std::string& key);
  // Whether the key is missing or null.
  static bool Absent(const sherd::JsonObject& object, const std::string& key);

  // The value at a key; fails if there is none, or of another type, which is not `kind`.
  template <typename T>
  T Get(const sherd::JsonObject& object, const std::string& where, const std::string& key,
        const char* kind) {
    const sherd::Json& value = At(object, key);
    if (const T* const found = std::get_if<T>(&value.value)) return *found;
    Fail(where + key, absl::StrCat("is ", Shown(value), ", not ", kind));
    return T{};
  }
  // A boolean that may be missing.
  bool Flag(const sherd::JsonObject& object, const std::string& where, const std::string& key,
            bool otherwise);
  // Fails unless each of these keys is missing, null, false, or an empty string.
  void Nothing(const sherd::JsonObject& object, const std::string& where,
               std::initializer_list<const char*> keys);
  // Fails for a key that is not among these.
  void Only(const sherd::JsonObject& object, const std::string& where,
            std::initializer_list<const char*> keys);

 private:
  static std::string Shown(const sherd::Json& value);

  const std::string begin_;
  absl::Status status_;
};

}  // namespace data
