#include "data/order.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/data/files.h"

namespace data {
namespace {

TEST(OrderTest, EpochVisitsEachSampleOnceInAnOrderOfItsOwn) {
  const Order order(37, 5);
  Cursor at;
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(at, (Cursor{epoch, 0}));
    epochs.push_back(order.Take(at, 30));
    EXPECT_EQ(at, (Cursor{epoch, 30}));
    const std::vector<int64_t> rest = order.Take(at, 30);  // ends with the epoch
    EXPECT_EQ(rest.size(), 7u);
    epochs.back().insert(epochs.back().end(), rest.begin(), rest.end());
    const std::set<int64_t> seen(epochs.back().begin(), epochs.back().end());
    EXPECT_EQ(seen.size(), 37u);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 36);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  Cursor other;
  EXPECT_NE(Order(37, 6).Take(other, 37), epochs[0]);
}

TEST(OrderTest, SavedCursorGoesOnWhereItWas) {
  const Order order(11, UINT64_MAX);
  Cursor at{4, 9};
  EXPECT_EQ(order.Save(at),
            R"({"epoch":4,"position":9,"samples":11,"seed":"18446744073709551615"})");
  auto restored = order.Restore(order.Save(at));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(*restored, at);
}

TEST(OrderTest, StatesOfOtherOrdersAndNoStatesAreRefused) {
  const Order order(11, 3);
  EXPECT_EQ(Order(12, 3).Restore(order.Save({})).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Order(11, 4).Restore(order.Save({})).status().code(),
            absl::StatusCode::kFailedPrecondition);
  for (const char* state : {"", "[]", "{}", R"({"epoch":-1,"position":0,"samples":11,"seed":"3"})",
                            R"({"epoch":0,"position":11,"samples":11,"seed":"3"})",
                            R"({"epoch":0,"position":1.5,"samples":11,"seed":"3"})",
                            R"({"epoch":0,"position":1,"samples":11,"seed":3})"}) {
    EXPECT_EQ(order.Restore(state).status().code(), absl::StatusCode::kInvalidArgument) << state;
  }
}

TEST(ShareTest, LastMicroBatchIsShorterAndLaterRanksHaveFewer) {
  using Ranges = std::vector<Range>;
  const Ranges cut = CutMicroBatches(11, 4);
  EXPECT_EQ(cut, (Ranges{{0, 4}, {4, 8}, {8, 11}}));
  EXPECT_EQ(ShareOf(cut, 0, 2), (Ranges{{0, 4}, {8, 11}}));
  EXPECT_EQ(ShareOf(cut, 1, 2), (Ranges{{4, 8}}));
  EXPECT_EQ(ShareOf(cut, 2, 4), (Ranges{{8, 11}}));
  EXPECT_EQ(ShareOf(cut, 3, 4), Ranges{});
  EXPECT_EQ(CutMicroBatches(0, 4), Ranges{});
}

}  // namespace
}  // namespace data
