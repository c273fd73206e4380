#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/io/safetensors.h"

namespace sherd {

// The tensors of a folder, which lie in one safetensors file or in several.
//
// One file is "model.safetensors". Several are named by "model.safetensors.index.json", an object
// whose "weight_map" says for each tensor which file of the folder has it. Where both are there,
// the one file counts, as for other readers.
// Ownership: maps the files; places and bytes are valid while this object lives, moving it keeps
// them. Threads: any number may read.
class SafetensorsIndex {
 public:
  // Where a tensor is.
  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;

    std::span<const uint8_t> bytes() const { return file->Bytes(*entry); }
  };

  // Opens every file, and checks all headers, before anything is read of the tensors.
  // Cost: memory in proportion to headers and index; an open file at a time.
  // Errors: kNotFound naming the folder that has neither; those of SafetensorsFile::Open;
  //   kInvalidArgument naming the index, and file and tensor where there are some: no JSON object,
  //   no "weight_map", a file name that is no plain name ending in ".safetensors", so that nothing
  //   outside of the folder is read, a tensor that its file has not, or one in a file that the
  //   index says nothing of, or says is elsewhere.
  static absl::StatusOr<SafetensorsIndex> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  // By name.
  const std::map<std::string, Place, std::less<>>& tensors() const { return tensors_; }
  // The tensor of that name; null if there is none.
  const Place* Find(std::string_view name) const;
  // Those opened, in the order of their names.
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  explicit SafetensorsIndex(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Add(const std::string& file);
  absl::Status ReadIndex(const std::string& name);
  // Whether each tensor is in the file that `weight_map` says, and nothing else is in the files.
  absl::Status CheckMap(const std::string& index,
                        const std::map<std::string, std::string>& weight_map) const;

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> tensors_;
};

}  // namespace sherd
