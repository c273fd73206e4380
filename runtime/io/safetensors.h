#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/io/mapped_file.h"

namespace sherd {

// One tensor of a safetensors file, row-major and little-endian.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // as the file names it: "F32", "BF16", "F8_E4M3", ...
  std::vector<int64_t> shape;  // extents, outermost first; none for a scalar
  int64_t offset = 0;          // its first byte in the file
  int64_t bytes = 0;

  int64_t numel() const;
  // The element type here; none for those that no Tensor has, such as "U8".
  std::optional<DType> type() const;
};

// The name that safetensors files have for an element type.
std::string_view SafetensorsNameOf(DType dtype);

// A safetensors file, mapped for reading: its header is checked whole when it is opened, and of its
// tensors the system reads those pages that are touched.
//
// Format: 8 bytes N, little-endian; N bytes of JSON, {"name": {"dtype", "shape", "data_offsets"}},
// and "__metadata__" of strings; the tensors, side by side.
// Source: github.com/huggingface/safetensors, README.
// Threads: any number may read.
class SafetensorsFile {
 public:
  // Headers above this are refused, as other readers do.
  static constexpr int64_t kMostHeaderBytes = 100'000'000;

  // Cost: reads the header; memory in proportion to it.
  // Errors: those of MappedFile::Open; kInvalidArgument naming the file, and the tensor and numbers
  //   where there are some: a header that is longer than the file or kMostHeaderBytes, no JSON
  //   object, an entry with other keys than the three, an unknown dtype, an extent that is no
  //   count, a size that does not follow from shape and dtype, tensors that overlap, leave a hole
  //   or do not end with the file, metadata that is no string.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& name);

  const std::string& name() const { return file_.name(); }
  // In the order of their bytes. Ownership: valid while this object lives; moving it keeps them.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The tensor of that name; null if there is none.
  const SafetensorsEntry* Find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The bytes of a tensor of this file, aligned to nothing in particular. Ownership: as entries().
  std::span<const uint8_t> Bytes(const SafetensorsEntry& entry) const {
    return file_.bytes().subspan(static_cast<size_t>(entry.offset),
                                 static_cast<size_t>(entry.bytes));
  }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  absl::Status ReadHeader();
  absl::Status CheckCoverage(int64_t data_begin);

  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace sherd
