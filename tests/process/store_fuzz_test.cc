// The fuzzing target without a fuzzer: the corpus as it is, and each file of it changed in many
// ways, the same ones in every run.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/core/random.h"
#include "tests/process/store_fuzz.h"
#include "tests/support/fuzz_inputs.h"

namespace sherd {
namespace {

constexpr uint64_t kChanges = 2000;  // of each file

void Play(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

TEST(StoreFuzz, TheCorpusAndManyChangesOfItHoldWhatIsPromised) {
  const std::vector<std::string> corpus = testing::ContentsOf(SHERD_STORE_CORPUS);
  ASSERT_GE(corpus.size(), 10u);
  for (size_t i = 0; i < corpus.size(); ++i) {
    Play(corpus[i]);
    for (uint64_t change = 0; change < kChanges; ++change) {
      const uint64_t random = Mix64(i, change);
      Play(testing::Changed(corpus[i], corpus[(random >> 20) % corpus.size()], random));
    }
  }
}

}  // namespace
}  // namespace sherd
