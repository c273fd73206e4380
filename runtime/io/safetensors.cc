#include "sherd/runtime/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/io/json.h"

namespace sherd {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

struct FileType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> type;
};
constexpr FileType kTypes[] = {
    {"F32", 4, DType::kF32},   {"F64", 8, DType::kF64},      {"BF16", 2, DType::kBF16},
    {"F16", 2, DType::kF16},   {"I32", 4, DType::kI32},      {"I64", 8, DType::kI64},
    {"I16", 2, std::nullopt},  {"I8", 1, std::nullopt},      {"U8", 1, std::nullopt},
    {"U16", 2, std::nullopt},  {"U32", 4, std::nullopt},     {"U64", 8, std::nullopt},
    {"BOOL", 1, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt}};

const FileType* FindType(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const FileType& type) { return type.name == name; });
  return found != std::end(kTypes) ? found : nullptr;
}

absl::Status Wrong(const std::string& file, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors file ", file, " ", why));
}

absl::Status WrongTensor(const std::string& file, const std::string& tensor,
                         const std::string& why) {
  return Wrong(file, absl::StrCat("has tensor '", tensor, "' ", why));
}

// The integers at a key, none of them negative; nothing if it is something else.
std::optional<std::vector<int64_t>> Counts(const Json& json) {
  const auto* const array = std::get_if<JsonArray>(&json.value);
  if (array == nullptr) return std::nullopt;
  std::vector<int64_t> counts;
  for (const Json& element : *array) {
    const auto* const count = std::get_if<int64_t>(&element.value);
    if (count == nullptr || *count < 0) return std::nullopt;
    counts.push_back(*count);
  }
  return counts;
}

// The product, or nothing where it does not fit.
std::optional<int64_t> Product(std::span<const int64_t> factors, int64_t product) {
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

// An entry from its JSON; offsets count from `data_begin`, behind which `data_bytes` lie.
absl::StatusOr<SafetensorsEntry> EntryOf(const std::string& file, const std::string& name,
                                         const Json& json, int64_t data_begin, int64_t data_bytes) {
  const auto* const object = std::get_if<JsonObject>(&json.value);
  if (object == nullptr) {
    return WrongTensor(file, name, absl::StrCat("that is ", json.kind(), ", not an object"));
  }
  for (const std::string_view key : {"dtype", "shape", "data_offsets"}) {
    if (object->contains(key)) continue;
    return WrongTensor(file, name, absl::StrCat("without \"", std::string(key), "\""));
  }
  if (object->size() != 3) {
    return WrongTensor(file, name, "with other keys than dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  entry.name = name;
  const auto* const dtype = std::get_if<std::string>(&object->find("dtype")->second.value);
  const FileType* const type = dtype != nullptr ? FindType(*dtype) : nullptr;
  if (type == nullptr) {
    return WrongTensor(file, name,
                       dtype != nullptr ? absl::StrCat("of unknown dtype '", *dtype, "'")
                                        : std::string("whose dtype is no string"));
  }
  entry.dtype = *dtype;
  const std::optional<std::vector<int64_t>> shape = Counts(object->find("shape")->second);
  if (!shape) return WrongTensor(file, name, "whose shape is no array of counts");
  entry.shape = *shape;
  const auto offsets = Counts(object->find("data_offsets")->second);
  if (!offsets || offsets->size() != 2) {
    return WrongTensor(file, name, "whose data_offsets are no two counts");
  }
  const int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (begin > end || end > data_bytes) {
    return WrongTensor(file, name,
                       absl::StrCat("at bytes [", begin, ", ", end, ") of ", data_bytes));
  }
  const std::optional<int64_t> size = Product(entry.shape, type->bytes);
  if (!size || *size != end - begin) {
    return WrongTensor(file, name,
                       absl::StrCat("of ", end - begin, " bytes, but ", entry.dtype, " [",
                                    absl::StrJoin(entry.shape, ", "), "] takes ",
                                    size ? absl::StrCat(*size) : std::string("more than 2^63")));
  }
  entry.offset = data_begin + begin;
  entry.bytes = *size;
  return entry;
}

}  // namespace

int64_t SafetensorsEntry::numel() const { return *Product(shape, 1); }

std::optional<DType> SafetensorsEntry::type() const { return FindType(dtype)->type; }

std::string_view SafetensorsNameOf(DType dtype) {
  return std::find_if(std::begin(kTypes), std::end(kTypes),
                      [&](const FileType& type) { return type.type == dtype; })
      ->name;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& name) {
  absl::StatusOr<MappedFile> mapped = MappedFile::Open("safetensors file", name);
  if (!mapped.ok()) return mapped.status();
  SafetensorsFile file(*std::move(mapped));
  if (absl::Status read = file.ReadHeader(); !read.ok()) return read;
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  const auto size = static_cast<int64_t>(file_.bytes().size());
  if (size < kLengthBytes) {
    return Wrong(name(), absl::StrCat("ends inside the header's length: ", size, " bytes"));
  }
  uint64_t told = 0;
  for (int i = 0; i < kLengthBytes; ++i) {
    told |= uint64_t{file_.bytes()[static_cast<size_t>(i)]} << (8 * i);
  }
  if (told > static_cast<uint64_t>(kMostHeaderBytes)) {
    return Wrong(name(), absl::StrCat("has a header of ", told, " bytes; at most ",
                                      kMostHeaderBytes, " are read"));
  }
  const auto header_bytes = static_cast<int64_t>(told);
  if (header_bytes > size - kLengthBytes) {
    return Wrong(name(), absl::StrCat("has a header of ", header_bytes, " bytes in a file of ",
                                      size, " bytes"));
  }
  const std::string_view header =
      file_.text().substr(kLengthBytes, static_cast<size_t>(header_bytes));
  if (!header.starts_with('{')) return Wrong(name(), "has a header that begins without '{'");
  const absl::StatusOr<Json> json = ParseJson(header);
  if (!json.ok()) {
    return Wrong(name(), absl::StrCat("has a header that is no JSON: ",
                                      std::string(json.status().message())));
  }
  const int64_t data_begin = kLengthBytes + header_bytes;
  for (const auto& [key, value] : std::get<JsonObject>(json->value)) {
    if (key == kMetadata) {
      const auto* const object = std::get_if<JsonObject>(&value.value);
      if (object == nullptr) return Wrong(name(), "has metadata that are no object");
      for (const auto& [name_of, text] : *object) {
        const auto* const string = std::get_if<std::string>(&text.value);
        if (string == nullptr) {
          return Wrong(name(), absl::StrCat("has metadata '", name_of, "' that is no string"));
        }
        metadata_.emplace(name_of, *string);
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry =
        EntryOf(name(), key, value, data_begin, size - data_begin);
    if (!entry.ok()) return entry.status();
    entries_.push_back(*std::move(entry));
  }
  return CheckCoverage(data_begin);
}

absl::Status SafetensorsFile::CheckCoverage(int64_t data_begin) {
  // Tensors without elements come before what begins at the same byte.
  std::sort(entries_.begin(), entries_.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  int64_t due = data_begin;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const SafetensorsEntry& entry = entries_[i];
    if (entry.offset != due) {
      return WrongTensor(
          name(), entry.name,
          absl::StrCat("at byte ", entry.offset - data_begin, ", but the one before ",
                       entry.offset < due ? "reaches to byte " : "ends at byte ",
                       due - data_begin));
    }
    due += entry.bytes;
    by_name_.emplace(entry.name, i);
  }
  const auto size = static_cast<int64_t>(file_.bytes().size());
  if (due == size) return absl::OkStatus();
  return Wrong(name(), absl::StrCat("has ", size - data_begin, " bytes of tensors, of which ",
                                    size - due, " belong to none"));
}

const SafetensorsEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() ? &entries_[found->second] : nullptr;
}

}  // namespace sherd
