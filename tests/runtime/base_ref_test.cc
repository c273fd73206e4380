#include "sherd/runtime/base/ref.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace sherd {
namespace {

struct Counted final : RefCounted {
  explicit Counted(int* deleted) : deleted(deleted) {}
  ~Counted() { ++*deleted; }
  int* deleted;
};

TEST(RefTest, LastHandleDeletes) {
  int deleted = 0;
  Ref<Counted> a = MakeRef<Counted>(&deleted);
  EXPECT_TRUE(a.unique());
  {
    const Ref<Counted> b = a;
    EXPECT_FALSE(a.unique());
    EXPECT_TRUE(a == b);
  }
  EXPECT_TRUE(a.unique());
  EXPECT_EQ(deleted, 0);
  a = Ref<Counted>();
  EXPECT_EQ(deleted, 1);
  EXPECT_FALSE(a.unique());
  EXPECT_FALSE(a);
}

TEST(RefTest, MovingKeepsTheCount) {
  int deleted = 0;
  Ref<Counted> a = MakeRef<Counted>(&deleted);
  const Ref<Counted> b = std::move(a);
  EXPECT_TRUE(b.unique());
  EXPECT_EQ(deleted, 0);
}

TEST(RefTest, SelfAssignmentKeepsTheObject) {
  int deleted = 0;
  Ref<Counted> a = MakeRef<Counted>(&deleted);
  const Ref<Counted>& same = a;
  a = same;
  EXPECT_EQ(deleted, 0);
  EXPECT_TRUE(a.unique());
}

TEST(RefTest, ThreadsShareAnObject) {
  int deleted = 0;
  {
    const Ref<Counted> shared = MakeRef<Counted>(&deleted);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([shared] {
        for (int j = 0; j < 1000; ++j) const Ref<Counted> copy = shared;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(shared.unique());
  }
  EXPECT_EQ(deleted, 1);
}

}  // namespace
}  // namespace sherd
