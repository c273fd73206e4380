// Worlds that follow a failed one in the same process, over the same store.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/runtime/comm/world.h"
#include "tests/runtime/comm_support.h"

namespace sherd {
namespace {

using testing::ExpectHas;
using testing::Thrown;

// Ranks that are threads, each with a world of `size` over one store.
void OnRanks(int size, const std::shared_ptr<Store>& store,
             const std::function<void(World&)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      absl::StatusOr<World> world = World::FromStore(
          store, rank, size, {.threads = 1, .rendezvous_timeout = absl::Seconds(30)});
      ASSERT_TRUE(world.ok()) << world.status();
      world->group().Barrier();
      body(*world);
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

// What the ranks of a world add up to, each giving `mine`.
int64_t SumOf(World& world, int64_t mine) {
  world.group().AllReduce(&mine, 1, DType::kI64);
  return mine;
}

TEST(Regroup, SurvivorsAreCountedAnewInTheirOldOrder) {
  OnRanks(4, MakeMemoryStore(), [](World& world) {
    const int old = world.rank();
    if (old == 1) return;  // goes
    Thrown([&] { world.group().Barrier(); });
    absl::StatusOr<World> next = world.Regroup({.expected_ranks = 3});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->size(), 3);
    EXPECT_EQ(next->rank(), old == 0 ? 0 : old - 1);
    EXPECT_EQ(next->local_rank(), next->rank());
    EXPECT_EQ(next->local_size(), 3);
    EXPECT_EQ(next->generation(), 1);
    EXPECT_EQ(SumOf(*next, 1 << old), 1 + 4 + 8);
    EXPECT_TRUE(next->store().Set(absl::StrCat("mine/", old), "1").ok());
    EXPECT_TRUE(next->Finish().ok());
  });
}

TEST(Regroup, AllRanksGoOnAtOnceAfterAnAbort) {
  const auto start = std::chrono::steady_clock::now();
  OnRanks(3, MakeMemoryStore(), [](World& world) {
    if (world.rank() == 2) world.group().Abort(absl::InternalError("step 7 failed"));
    ExpectHas(Thrown([&] { world.group().Barrier(); }), {"rank 2 aborted: step 7 failed"});
    // The wait is for ranks that do not come: all come.
    absl::StatusOr<World> next = world.Regroup({.wait = absl::Hours(1)});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->rank(), world.rank());
    EXPECT_EQ(SumOf(*next, next->rank()), 3);
    EXPECT_TRUE(next->Finish().ok());
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(5));
}

TEST(Regroup, EndsTheOldWorldOfRanksThatHaveNotNoticed) {
  OnRanks(3, MakeMemoryStore(), [](World& world) {
    if (world.rank() != 0) {
      ExpectHas(Thrown([&] { world.group().Barrier(); }), {"rank 0 aborted: it forms a new world"});
    }
    absl::StatusOr<World> next = world.Regroup();
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(SumOf(*next, 1), 3);
    EXPECT_TRUE(next->Finish().ok());
  });
}

TEST(Regroup, FewerThanHalfDoNotGoOnUnlessTold) {
  OnRanks(4, MakeMemoryStore(), [](World& world) {
    if (world.rank() > 1) return;
    absl::StatusOr<World> none = world.Regroup({.wait = absl::Seconds(60), .expected_ranks = 2});
    EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(none.status().message(), "ranks [0, 1] of 4 came to form a new world; 3 are needed");
    // The second try has keys of its own.
    absl::StatusOr<World> next = world.Regroup({.expected_ranks = 2, .min_ranks = 2});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->generation(), 2);
    EXPECT_EQ(SumOf(*next, 1), 2);
    EXPECT_TRUE(next->Finish().ok());
  });
}

TEST(Regroup, WhoComesTooLateIsToldWhoWentOn) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  OnRanks(3, store, [&](World& world) {
    if (world.rank() == 1) {
      // Until the others have decided.
      ASSERT_TRUE(store->Get("generation/1/survivors/decision", absl::Seconds(60)).ok());
      const absl::Status late = world.Regroup().status();
      EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(late.message(), "rank 1 came too late: ranks [0, 2] of 3 have formed a new world");
      return;
    }
    absl::StatusOr<World> next = world.Regroup({.expected_ranks = 2});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->size(), 2);
    EXPECT_TRUE(next->Finish().ok());
  });
}

TEST(Regroup, TheWaitEndsWithThoseWhoAreThere) {
  OnRanks(3, MakeMemoryStore(), [](World& world) {
    if (world.rank() == 0) return;
    absl::StatusOr<World> next = world.Regroup({.wait = absl::Seconds(2)});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->size(), 2);
    EXPECT_EQ(SumOf(*next, world.rank()), 3);
    EXPECT_TRUE(next->Finish().ok());
  });
}

TEST(Generation, EachHasKeysOfItsOwnInOneStore) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  for (int generation : {0, 3}) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        absl::StatusOr<World> world =
            World::FromStore(store, rank, 2, {.threads = 1, .generation = generation});
        ASSERT_TRUE(world.ok()) << world.status();
        EXPECT_EQ(world->generation(), generation);
        absl::StatusOr<int64_t> visits = world->store().Add(absl::StrCat("visits/", rank), 1);
        ASSERT_TRUE(visits.ok());
        EXPECT_EQ(*visits, 1);
        EXPECT_EQ(SumOf(*world, rank), 1);
        EXPECT_TRUE(world->Finish().ok());
      });
    }
    for (std::thread& thread : ranks) thread.join();
  }
  EXPECT_EQ(World::FromStore(store, 0, 2, {.generation = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sherd
