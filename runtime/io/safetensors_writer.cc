#include "sherd/runtime/io/safetensors_writer.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/json_text.h"
#include "sherd/runtime/base/utf8.h"
#include "sherd/runtime/io/safetensors.h"

namespace sherd {
namespace {

// The data begin at a multiple of this, so that mapped elements are aligned.
constexpr size_t kAlignment = 8;

absl::Status Wrong(const std::string& file, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors file ", file, ": ", why));
}

absl::Status CheckText(const std::string& file, const std::string& what, const std::string& text) {
  if (ValidUtf8Bytes(text) == text.size()) return absl::OkStatus();
  return Wrong(file, absl::StrCat(what, " is not UTF-8"));
}

// The bytes of a tensor, or -1 for a shape that has none.
int64_t BytesOf(const SafetensorsSpec& spec) {
  int64_t bytes = SizeOf(spec.dtype);
  for (int64_t extent : spec.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return -1;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& name, const std::vector<SafetensorsSpec>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> parts;
  std::vector<std::string> texts;
  for (const auto& [key, value] : metadata) {
    if (absl::Status good = CheckText(name, "metadata '" + key + "'", key + value); !good.ok()) {
      return good;
    }
    texts.push_back(absl::StrCat(JsonQuoted(key), ":", JsonQuoted(value)));
  }
  if (!texts.empty()) {
    parts.push_back(absl::StrCat("\"__metadata__\":{", absl::StrJoin(texts, ","), "}"));
  }
  std::set<std::string> seen;
  int64_t end = 0;
  for (const SafetensorsSpec& spec : tensors) {
    const std::string what = absl::StrCat("tensor '", spec.name, "'");
    if (absl::Status good = CheckText(name, what, spec.name); !good.ok()) return good;
    if (spec.name == "__metadata__") return Wrong(name, "a tensor cannot be called __metadata__");
    if (!seen.insert(spec.name).second) return Wrong(name, what + " comes twice");
    const int64_t bytes = BytesOf(spec);
    const int64_t begin = end;
    if (bytes < 0 || __builtin_add_overflow(end, bytes, &end)) {
      return Wrong(
          name, absl::StrCat(what, " cannot have shape [", absl::StrJoin(spec.shape, ", "), "]"));
    }
    parts.push_back(absl::StrCat(JsonQuoted(spec.name), ":{\"dtype\":\"",
                                 std::string(SafetensorsNameOf(spec.dtype)), "\",\"shape\":[",
                                 absl::StrJoin(spec.shape, ","), "],\"data_offsets\":[", begin, ",",
                                 end, "]}"));
  }
  std::string header = absl::StrCat("{", absl::StrJoin(parts, ","), "}");
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (header.size() > static_cast<size_t>(SafetensorsFile::kMostHeaderBytes)) {
    return Wrong(name, absl::StrCat("the header has ", header.size(), " bytes; readers take ",
                                    SafetensorsFile::kMostHeaderBytes));
  }
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  absl::StatusOr<NewFile> file = NewFile::Create(name);
  if (!file.ok()) return file.status();
  if (absl::Status written = file->Append(length + header); !written.ok()) return written;
  return SafetensorsWriter(*std::move(file), end);
}

absl::Status SafetensorsWriter::Append(std::span<const uint8_t> bytes) {
  const auto count = static_cast<int64_t>(bytes.size());
  if (count > missing_) {
    return Wrong(file_.name(), absl::StrCat(count, " bytes were appended, where the tensors have ",
                                            missing_, " left"));
  }
  absl::Status written = file_.Append(bytes);
  if (written.ok()) missing_ -= count;
  return written;
}

absl::Status SafetensorsWriter::Close() {
  if (missing_ > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "safetensors file ", file_.name(), ": ", missing_, " bytes of tensors were not appended"));
  }
  return file_.Publish();
}

}  // namespace sherd
