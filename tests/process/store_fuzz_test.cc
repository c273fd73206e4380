// The fuzzing target without a fuzzer: the corpus as it is, and each file of it changed in many
// ways, the same ones in every run.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/core/random.h"
#include "tests/process/store_fuzz.h"

namespace sherd {
namespace {

constexpr uint64_t kChanges = 2000;  // of each file

std::vector<std::string> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(SHERD_STORE_CORPUS)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void Play(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// Cuts, doubles, or overwrites with a byte or with a length near a limit.
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

TEST(StoreFuzz, TheCorpusAndManyChangesOfItHoldWhatIsPromised) {
  const std::vector<std::string> corpus = Corpus();
  ASSERT_GE(corpus.size(), 10u);
  for (size_t i = 0; i < corpus.size(); ++i) {
    Play(corpus[i]);
    for (uint64_t change = 0; change < kChanges; ++change) {
      const uint64_t random = Mix64(i, change);
      Play(Changed(corpus[i], corpus[(random >> 20) % corpus.size()], random));
    }
  }
}

}  // namespace
}  // namespace sherd
