#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/io/safetensors_writer.h"

namespace sherd {

struct SafetensorsFolderOptions {
  // Of the tensors of one file; a larger tensor is alone in its file.
  int64_t max_file_bytes = 5'000'000'000;
  // Of every file. Other readers want {"format": "pt"} where PyTorch shall open them.
  std::map<std::string, std::string> metadata;
};

// Writes tensors to one safetensors file of a folder, or to as many as their sizes ask for, with an
// index: what SafetensorsIndex opens.
//
// One file is "model.safetensors"; of n, file i is "model-i-of-n.safetensors" in five digits, and
// "model.safetensors.index.json" comes last. So a folder without index and without the one file is
// not complete. Ownership: one file at a time is open, until Close or destruction; files that were
// complete then stay.
class SafetensorsFolderWriter {
 public:
  // Makes the folder if there is none, and decides which tensor goes where: in this order, each
  // file as full as possible.
  // Errors: kInvalidArgument for max_file_bytes < 1; kAlreadyExists naming the "model*.safetensors"
  //   or index that the folder has; those of SafetensorsWriter::Create and of the system.
  static absl::StatusOr<SafetensorsFolderWriter> Create(
      const std::string& folder, std::vector<SafetensorsSpec> tensors,
      const SafetensorsFolderOptions& options = {});

  // Whether Create would take the folder, which is made if there is none: for who writes much
  // later.
  static absl::Status Check(const std::string& folder);

  // The next bytes of the tensors, as SafetensorsWriter::Append.
  absl::Status Append(std::span<const uint8_t> bytes);
  // Ends the last file and writes the index. Returns the names of all files, without the folder's.
  // Errors: as SafetensorsWriter::Close.
  absl::StatusOr<std::vector<std::string>> Close();

 private:
  // Consecutive tensors in one file.
  struct Part {
    std::string file;
    std::vector<SafetensorsSpec> tensors;
    int64_t bytes = 0;
  };

  SafetensorsFolderWriter(std::string folder, SafetensorsFolderOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}
  absl::Status Split(std::vector<SafetensorsSpec> tensors);
  // Begins the file that comes next.
  absl::Status Begin();
  absl::Status WriteIndex() const;

  std::string folder_;
  SafetensorsFolderOptions options_;
  std::vector<Part> parts_;
  size_t begun_ = 0;  // files
  int64_t left_ = 0;  // bytes of the open one
  std::optional<SafetensorsWriter> writer_;
};

}  // namespace sherd
