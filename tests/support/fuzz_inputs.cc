#include "tests/support/fuzz_inputs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "sherd/runtime/core/random.h"

namespace sherd::testing {

std::vector<std::string> ContentsOf(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> contents;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return contents;
}

std::string Changed(std::string input, const std::string& other, uint64_t random) {
  for (int round = 0; round < 3 && !input.empty(); ++round, random = Mix64(random, 1)) {
    const size_t at = (random >> 8) % input.size();
    const uint32_t lengths[] = {0, 255, 256, 257, 4096, 4097, 0x7FFFFFFF, 0xFFFFFFFF};
    switch (random % 6) {
      case 0:
        input.resize(at);
        break;
      case 1:
        input.insert(at, input.substr(at));
        break;
      case 2:
        input[at] = static_cast<char>(random >> 40);
        break;
      case 3:
        for (size_t i = 0; i < 4 && at + i < input.size(); ++i) {
          input[at + i] = static_cast<char>(lengths[(random >> 40) % 8] >> (8 * i));
        }
        break;
      case 4:
        input.erase(at, 1 + (random >> 40) % 8);
        break;
      default:
        input += other.substr(std::min(other.size(), at));
    }
  }
  return input;
}

}  // namespace sherd::testing
