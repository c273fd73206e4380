#include "sherd/runtime/comm/agree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace sherd {
namespace {

TEST(GatherTextsTest, TextsOfAnyLengthAndBytesComeInRankOrder) {
  for (const int ranks : {1, 2, 3}) {
    testing::RunRanks(ranks, [&](World& world) {
      const std::string mine(static_cast<size_t>(world.rank() * 5),
                             static_cast<char>(world.rank()));
      const std::vector<std::string> all = GatherTexts(world.group(), mine);
      ASSERT_EQ(all.size(), static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(all[static_cast<size_t>(r)],
                  std::string(static_cast<size_t>(r * 5), static_cast<char>(r)));
      }
      EXPECT_EQ(GatherTexts(world.group(), ""), std::vector<std::string>(all.size()));
    });
  }
}

TEST(AgreeOnTest, FirstFailureIsThatOfAllRanks) {
  testing::RunRanks(3, [](World& world) {
    ProcessGroup& group = world.group();
    EXPECT_TRUE(AgreeOn(group, absl::OkStatus()).ok());
    const auto fails = [&](int from) {
      if (world.rank() < from) return absl::OkStatus();
      return absl::NotFoundError("no file " + std::to_string(world.rank()));
    };
    EXPECT_EQ(AgreeOn(group, fails(1)), absl::NotFoundError("rank 1: no file 1"));
    EXPECT_EQ(AgreeOn(group, fails(2)), absl::NotFoundError("rank 2: no file 2"));
    EXPECT_EQ(AgreeOn(group, absl::DataLossError("all say so")), absl::DataLossError("all say so"));
    const absl::Status empty = world.rank() == 0 ? absl::AbortedError("") : absl::OkStatus();
    EXPECT_EQ(AgreeOn(group, empty), absl::AbortedError("rank 0: "));
  });
}

}  // namespace
}  // namespace sherd
