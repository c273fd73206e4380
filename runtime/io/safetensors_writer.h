#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/base/new_file.h"
#include "sherd/runtime/core/dtype.h"

namespace sherd {

// A tensor to write: its elements come later.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // extents, outermost first
};

// Writes a safetensors file, whose tensors are handed over piece by piece.
//
// Nothing is there under the file's name before Close: what was there before stays until then, and
// what is left without Close is removed. Ownership: one file, until Close or destruction.
class SafetensorsWriter {
 public:
  // Begins a file of `tensors`, in this order, and writes its header.
  // Errors: kInvalidArgument naming a tensor that comes twice, is called "__metadata__", or has a
  //   negative extent or too many elements; a name or metadata that are not UTF-8; those of
  //   NewFile::Create.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& name, const std::vector<SafetensorsSpec>& tensors,
      const std::map<std::string, std::string>& metadata = {});

  // The next bytes of the tensors, which follow one another without gaps; a piece may end anywhere.
  // Errors: kInvalidArgument if there are more than the tensors have; those of NewFile::Append.
  absl::Status Append(std::span<const uint8_t> bytes);
  // Hands the file to the disk and gives it its name.
  // Errors: kFailedPrecondition with both numbers if bytes are missing; those of NewFile::Publish.
  absl::Status Close();

 private:
  SafetensorsWriter(NewFile file, int64_t bytes) : file_(std::move(file)), missing_(bytes) {}

  NewFile file_;
  int64_t missing_;  // bytes of the tensors that were not appended yet
};

}  // namespace sherd
