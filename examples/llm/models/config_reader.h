#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "sherd/runtime/io/json.h"

namespace llm {

// Reads the fields of a config.json one by one, and collects what is wrong with them.
//
// A field that is absent or null takes the default, or is an error where there is none. What is
// read after an error is a default too, so a reader goes on and asks status() at the end.
// Ownership: `object` outlives this.
class ConfigReader {
 public:
  // `name` is that of the file, and `field` what names of fields begin with: "rope_scaling.".
  ConfigReader(std::string name, const sherd::JsonObject& object, std::string field = "")
      : name_(std::move(name)), field_(std::move(field)), object_(object) {}

  // The value; null where it is absent or null.
  const sherd::Json* Find(std::string_view field) const;
  bool Has(std::string_view field) const { return Find(field) != nullptr; }
  // Whether the field is there, be it null.
  bool Mentions(std::string_view field) const { return object_.contains(field); }

  // Errors: a value of another kind, or out of range.
  int64_t Integer(std::string_view field, std::optional<int64_t> missing, int64_t least = 1,
                  int64_t most = int64_t{1} << 40);
  double Real(std::string_view field, std::optional<double> missing, double least = 0.0,
              double most = 1e30);
  bool Flag(std::string_view field, bool missing);
  std::string Text(std::string_view field, std::optional<std::string> missing);
  // Null where it is absent or null. Errors: no object.
  const sherd::JsonObject* Object(std::string_view field);

  // Errors: any other value than this, when there is one.
  void Expect(std::string_view field, bool value);
  // Notes that the field's value is not supported, and why.
  void Refuse(std::string_view field, std::string_view why);
  // A reader of the object that a field is; what it finds is taken over by Add.
  ConfigReader Inside(const std::string& field, const sherd::JsonObject& object) const {
    return ConfigReader(name_, object, field_ + field + ".");
  }
  void Add(const ConfigReader& other);

  // kInvalidArgument with all that is wrong, naming file, fields and values.
  absl::Status status() const;

 private:
  void Fail(std::string_view field, std::string_view wanted);
  std::string ValueText(std::string_view field) const;

  std::string name_;
  std::string field_;
  const sherd::JsonObject& object_;
  std::vector<std::string> wrong_;
};

}  // namespace llm
