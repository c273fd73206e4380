// The fuzzing targets without a fuzzer: their corpora as they are, and each file of them changed in
// many ways, the same ones in every run.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/core/random.h"
#include "tests/fuzz/targets.h"
#include "tests/support/fuzz_inputs.h"

namespace sherd::fuzz {
namespace {

constexpr uint64_t kChanges = 2000;  // of each file

class ReplayTest : public ::testing::TestWithParam<Target> {};

TEST_P(ReplayTest, TheCorpusAndManyChangesOfItHoldWhatIsPromised) {
  const std::vector<std::string> corpus =
      testing::ContentsOf(std::string(SHERD_FUZZ_CORPUS) + "/" + GetParam().name);
  ASSERT_GE(corpus.size(), 5u);
  for (size_t i = 0; i < corpus.size(); ++i) {
    GetParam().play(corpus[i]);
    for (uint64_t change = 0; change < kChanges; ++change) {
      const uint64_t random = Mix64(i, change);
      GetParam().play(testing::Changed(corpus[i], corpus[(random >> 20) % corpus.size()], random));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReplayTest, ::testing::ValuesIn(kTargets),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace sherd::fuzz
