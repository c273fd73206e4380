// What saved states and models are read from.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "absl/strings/match.h"
#include "sherd/runtime/base/json_text.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/safetensors.h"
#include "sherd/shard/internal/state_manifest.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/targets.h"

namespace sherd::fuzz {
namespace {

constexpr int64_t kLengthBytes = 8;

bool Has(const absl::Status& status, const std::string& part) {
  return absl::StrContains(status.message(), part);
}

std::string Written(const Json& json);

struct Writer {
  std::string operator()(std::nullptr_t) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const {
    char text[64];  // the exponent keeps it a number that is no integer
    std::snprintf(text, sizeof(text), "%.17e", value);
    return text;
  }
  std::string operator()(const std::string& value) const { return JsonQuoted(value); }
  std::string operator()(const JsonArray& array) const {
    std::string text = "[";
    for (const Json& element : array) text += (text.size() > 1 ? "," : "") + Written(element);
    return text + "]";
  }
  std::string operator()(const JsonObject& object) const {
    std::string text = "{";
    for (const auto& [key, value] : object) {
      text += (text.size() > 1 ? "," : "") + JsonQuoted(key) + ":" + Written(value);
    }
    return text + "}";
  }
};

std::string Written(const Json& json) { return std::visit(Writer(), json.value); }

}  // namespace

void PlayJson(std::string_view input) {
  const absl::StatusOr<Json> json = ParseJson(input);
  if (!json.ok()) {
    Require(json.status().code() == absl::StatusCode::kInvalidArgument &&
                std::string(json.status().message()).starts_with("column "),
            "an error of JSON names no column");
    return;
  }
  const std::string text = Written(*json);
  const absl::StatusOr<Json> again = ParseJson(text);
  Require(again.ok(), "JSON that was read cannot be read when it is written: " + text);
  Require(Written(*again) == text, "JSON changes when it is written: " + text);
}

void PlaySafetensors(std::string_view input) {
  InputFiles files;
  const std::string name = files.Add("x.safetensors", input);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(name);
  if (!file.ok()) {
    Require(Has(file.status(), name), "an error of safetensors names no file");
    return;
  }
  int64_t bytes = 0;
  int64_t end = 0;
  for (const SafetensorsEntry& entry : file->entries()) {
    Require(file->Find(entry.name) == &entry, "a tensor is not found by its name");
    Require(bytes == 0 || entry.offset == end, "tensors are not side by side");
    Require(entry.bytes >= 0 && entry.numel() >= 0, "a tensor has a negative size");
    if (const std::optional<DType> type = entry.type()) {
      Require(entry.bytes == entry.numel() * SizeOf(*type), "a tensor has another size");
      Require(SafetensorsNameOf(*type) == entry.dtype, "a dtype has two names");
    }
    Touch(file->Bytes(entry));
    bytes += entry.bytes;
    end = entry.offset + entry.bytes;
  }
  const auto size = static_cast<int64_t>(input.size());
  Require(bytes <= size - kLengthBytes, "tensors have more bytes than the file");
  Require(bytes == 0 || end == size, "bytes follow the tensors");
}

void PlayManifest(std::string_view input) {
  const std::string name = "folder/manifest.json";
  const absl::StatusOr<internal::Manifest> manifest = internal::ParseManifest(name, input);
  if (!manifest.ok()) {
    Require(Has(manifest.status(), name), "an error of a manifest names no file");
    return;
  }
  for (const auto& [key, parameter] : manifest->parameters) {
    Require(parameter.tensors.contains("value"), "a parameter has no value");
    for (const auto& [of, tensor] : parameter.tensors) {
      int64_t due = 0;
      for (const internal::StatePiece& piece : tensor.pieces) {
        Require(piece.rank >= 0 && piece.rank < manifest->ranks, "a piece of a rank that is none");
        Require(piece.begin == due && piece.count > 0, "pieces are not side by side");
        const int64_t bytes = piece.count * SizeOf(tensor.dtype);
        Require(std::ssize(piece.crc32c) * internal::kBlockBytes >= bytes, "checksums are missing");
        due += piece.count;
      }
      Require(due == parameter.numel(), "pieces are missing");
    }
  }
  const std::string text = internal::ManifestJson(*manifest);
  const absl::StatusOr<internal::Manifest> again = internal::ParseManifest(name, text);
  Require(again.ok(), "a manifest that was read cannot be read when it is written: " + text);
  Require(internal::ManifestJson(*again) == text, "a manifest changes when it is written: " + text);
}

}  // namespace sherd::fuzz
