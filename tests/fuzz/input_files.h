#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::fuzz {

// Ends the process, saying what, unless it holds.
void Require(bool holds, std::string_view what);

// Files of one input, below a folder of their own that goes with this object. The bytes are in
// memory: names are links to them.
class InputFiles {
 public:
  InputFiles();
  ~InputFiles();
  InputFiles(const InputFiles&) = delete;
  InputFiles& operator=(const InputFiles&) = delete;

  // Returns the path.
  std::string Add(const std::string& name, std::string_view bytes);
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::vector<int> descriptors_;
  std::vector<std::string> paths_;
};

// Takes up to two little-endian bytes from the beginning, and as many bytes more as they say.
std::string_view TakeSized(std::string_view& input);

// Reads all of `bytes`, so that a sanitizer sees what is not there. Returns a sum of them.
uint64_t Touch(std::span<const uint8_t> bytes);

}  // namespace sherd::fuzz
