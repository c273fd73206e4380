// Groups of some ranks of a group, and meshes of two axes, over real Gloo.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/comm/delayed_group.h"
#include "sherd/runtime/comm/local_group.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/runtime/comm/recording_group.h"
#include "tests/runtime/comm_support.h"

namespace sherd {
namespace {

using testing::ExpectHas;
using testing::RankOptions;
using testing::RunFailing;
using testing::RunRanks;
using testing::Thrown;

// Where `rank` is in `ranks`.
int PlaceOf(int rank, const std::vector<int>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank) return static_cast<int>(i);
  }
  return -1;
}

// Rank r of the world's element i.
int32_t Element(int world_rank, int64_t i) {
  return static_cast<int32_t>(1000 * world_rank + i % 991);
}

std::vector<int32_t> Filled(int world_rank, int64_t elems) {
  std::vector<int32_t> data(static_cast<size_t>(elems));
  for (int64_t i = 0; i < elems; ++i) data[static_cast<size_t>(i)] = Element(world_rank, i);
  return data;
}

// Calls every collective on `group`, whose members are `ranks` of the world, and checks each
// element.
void CheckCollectives(ProcessGroup& group, int world_rank, const std::vector<int>& ranks,
                      int64_t n) {
  const auto size = static_cast<int64_t>(ranks.size());
  ASSERT_EQ(group.size(), size);
  ASSERT_EQ(group.rank(), PlaceOf(world_rank, ranks));
  auto sum = [&](int64_t i) {
    int32_t total = 0;
    for (int r : ranks) total += Element(r, i);
    return total;
  };
  int64_t wrong = 0;
  const std::vector<int32_t> shard = Filled(world_rank, n);
  std::vector<int32_t> full(static_cast<size_t>(size * n));
  group.AllGather(shard.data(), full.data(), n * 4);
  for (int64_t p = 0; p < size; ++p) {
    for (int64_t i = 0; i < n; ++i) {
      wrong +=
          full[static_cast<size_t>(p * n + i)] != Element(ranks[static_cast<size_t>(p)], i) ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0) << "all_gather";

  full = Filled(world_rank, size * n);
  std::vector<int32_t> piece(static_cast<size_t>(n), 7);
  group.ReduceScatter(full.data(), piece.data(), n, DType::kI32, /*add=*/true);
  for (int64_t i = 0; i < n; ++i) {
    wrong += piece[static_cast<size_t>(i)] != 7 + sum(group.rank() * n + i) ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0) << "reduce_scatter";

  group.AllReduce(full.data(), size * n, DType::kI32);
  for (int64_t i = 0; i < size * n; ++i) {
    wrong += full[static_cast<size_t>(i)] != sum(i) ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0) << "all_reduce";

  for (int root = 0; root < size; ++root) {
    std::vector<int32_t> data = Filled(world_rank, n);
    group.Broadcast(data.data(), n * 4, root);
    EXPECT_EQ(data, Filled(ranks[static_cast<size_t>(root)], n)) << "broadcast from " << root;
  }
  group.Barrier();
}

TEST(CommSplit, PartsOfUnequalSizeComputeApart) {
  RunRanks(4,
           [](World& w) {
             const std::vector<int> ranks =
                 w.rank() == 2 ? std::vector<int>{2} : std::vector<int>{0, 1, 3};
             std::unique_ptr<ProcessGroup> part = w.group().Split("part", ranks);
             for (int64_t n : {0, 1, 1021, 50001}) CheckCollectives(*part, w.rank(), ranks, n);
             // The whole is as it was.
             CheckCollectives(w.group(), w.rank(), {0, 1, 2, 3}, 1021);
           },
           {.piece_bytes = 64 * 1024});
}

TEST(CommSplit, PartsForkAndSplitAgainWhateverTheOthersDo) {
  RunRanks(4, [](World& w) {
    const std::vector<int> ranks = w.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    std::unique_ptr<ProcessGroup> part = w.group().Split("half", ranks);
    // Only one half makes more groups; what the whole forks afterwards fits together all the same.
    if (w.rank() >= 2) {
      std::unique_ptr<ProcessGroup> fork = part->Fork("a");
      CheckCollectives(*fork, w.rank(), ranks, 100);
      const int own[] = {part->rank()};
      std::unique_ptr<ProcessGroup> alone = part->Split("alone", own);
      CheckCollectives(*alone, w.rank(), {w.rank()}, 100);
      const int both[] = {0, 1};
      std::unique_ptr<ProcessGroup> again = part->Split("again", both);
      CheckCollectives(*again, w.rank(), {2, 3}, 100);
    }
    std::unique_ptr<ProcessGroup> whole = w.group().Fork("whole");
    CheckCollectives(*whole, w.rank(), {0, 1, 2, 3}, 100);
    std::unique_ptr<ProcessGroup> fork = part->Fork("b");
    part.reset();
    CheckCollectives(*fork, w.rank(), ranks, 100);
  });
}

TEST(CommSplit, CrossingPartsRunAtTheSameTime) {
  RunRanks(4, [](World& w) {
    const std::vector<int> row = w.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column =
        w.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    std::unique_ptr<ProcessGroup> rows = w.group().Split("row", row);
    std::unique_ptr<ProcessGroup> columns = w.group().Split("column", column);
    std::thread other([&] {
      for (int64_t n = 1; n < 40000; n += 3001) CheckCollectives(*rows, w.rank(), row, n);
    });
    for (int64_t n = 1; n < 40000; n += 4001) CheckCollectives(*columns, w.rank(), column, n);
    other.join();
  });
}

TEST(CommSplit, BadListsAreRefusedBeforeAnythingIsSent) {
  RunRanks(2, [](World& w) {
    auto refused = [&](const std::vector<int>& ranks, const std::string& text) {
      const Error error = Thrown([&] { w.group().Split("p", ranks); });
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      ExpectHas(error, {text, "'p'"});
    };
    refused({}, "leaves out this rank");
    refused({1 - w.rank()}, "leaves out this rank, " + std::to_string(w.rank()));
    refused({1, 0}, "ascending");
    refused({0, 0, 1}, "ascending");
    refused({0, 1, 2}, "has no rank 2");
    refused({-1, 0, 1}, "has no rank -1");
    w.group().Barrier();
  });
  ExpectHas(Thrown([] {
              const int ranks[] = {0, 1};
              MakeLocalGroup()->Split("p", ranks);
            }),
            {"has no rank 1"});
}

TEST(CommSplit, ListsThatAreNoPartsAreAnErrorOnAllRanks) {
  RunFailing(3, [](World& w) {
    const std::vector<int> ranks =
        w.rank() == 1 ? std::vector<int>{0, 1} : std::vector<int>{w.rank()};
    const Error error = Thrown([&] { w.group().Split("odd", ranks); });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(error, {"rank 1 splits", "'odd' of ranks [0, 1]", "but rank 0 of it came with"});
  });
}

TEST(CommSplit, MismatchIsToldInRanksOfTheWorld) {
  RunFailing(4, [](World& w) {
    const std::vector<int> ranks =
        w.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    char data[4] = {};
    const Error error = Thrown([&] {
      std::unique_ptr<ProcessGroup> part = w.group().Split("odd", ranks);
      if (w.rank() == 3) part->Broadcast(data, 4, 1);
      part->Broadcast(data, 4, 0);
      part->Barrier();
      w.group().Barrier();
    });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(error, {"rank 1 called broadcast of 4 bytes from rank 1 (#1)",
                      "rank 3 called broadcast of 4 bytes from rank 3 (#1)"});
  });
}

TEST(CommSplit, AbortOfAPartEndsAllAndOfTheWholeEndsParts) {
  for (const bool of_part : {true, false}) {
    RunFailing(4, [of_part](World& w) {
      const std::vector<int> ranks =
          w.rank() == 3 ? std::vector<int>{3} : std::vector<int>{0, 1, 2};
      const Error error = Thrown([&] {
        std::unique_ptr<ProcessGroup> part = w.group().Split("most", ranks);
        w.group().Barrier();
        if (w.rank() == 3) (of_part ? *part : w.group()).Abort(absl::InternalError("why"));
        for (;;) (of_part && w.rank() != 3 ? w.group() : *part).Barrier();
      });
      EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
      ExpectHas(error, {"rank 3 aborted: why"});
    });
  }
}

TEST(CommSplit, DeadlineNamesTheRankOfTheWorldThatDidNotCall) {
  RankOptions options;
  options.collective_timeout = absl::Milliseconds(700);
  RunFailing(
      4,
      [](World& w) {
        const std::vector<int> ranks =
            w.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
        std::unique_ptr<ProcessGroup> part = w.group().Split("column", ranks);
        if (w.rank() == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        } else if (w.rank() != 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        }
        const Error error = Thrown([&] { part->Barrier({.module_path = "head"}); });
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
        ExpectHas(error, {"barrier (#1) in head on 'column' timed out on rank 1", "rank 3 of 4"});
      },
      options);
}

TEST(CommSplit, ARankLostOutsideAPartEndsItToo) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  auto stay = [&](int rank) {
    absl::StatusOr<World> w = World::FromStore(store, rank, 3, {.threads = 1});
    ASSERT_TRUE(w.ok()) << w.status();
    const int ranks[] = {0, 1};
    std::unique_ptr<ProcessGroup> part = w->group().Split("two", ranks);
    const Error error = Thrown([&] {
      for (;;) part->Barrier();
    });
    EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
    ExpectHas(error, {"lost the connection to rank 2"});
  };
  std::thread zero(stay, 0);
  std::thread one(stay, 1);
  {
    // A store of its own view, in which leaving is never told: as if the process had ended.
    class Mute final : public Store {
     public:
      explicit Mute(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}
      absl::Status Set(std::string_view key, std::string_view value) override {
        if (key.find("left/") != std::string_view::npos) return absl::OkStatus();
        return inner_->Set(key, value);
      }
      absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
        return inner_->Get(key, timeout);
      }
      absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
        return inner_->TryGet(key);
      }
      absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
        return inner_->Add(key, delta);
      }
      absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                             std::string_view desired) override {
        return inner_->CompareSet(key, expected, desired);
      }
      absl::StatusOr<bool> Delete(std::string_view key) override { return inner_->Delete(key); }

     private:
      const std::shared_ptr<Store> inner_;
    };
    absl::StatusOr<World> w = World::FromStore(std::make_shared<Mute>(store), 2, 3, {.threads = 1});
    ASSERT_TRUE(w.ok()) << w.status();
    const int ranks[] = {2};
    w->group().Split("two", ranks);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  zero.join();
  one.join();
}

TEST(CommSplit, DecoratorsWrapPartsAndRecordTheWayToThem) {
  auto log = std::make_shared<CollectiveLog>();
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    if (group->rank() != 0) return MakeDelayedGroup(std::move(group));
    return MakeRecordingGroup(std::move(group), log);
  };
  RunRanks(
      3,
      [](World& w) {
        const std::vector<int> ranks = w.rank() == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
        std::unique_ptr<ProcessGroup> part = w.group().Split("replicate", ranks);
        CheckCollectives(*part, w.rank(), ranks, 100);
        std::unique_ptr<ProcessGroup> fork = part->Fork("reduce");
        fork->Barrier();
      },
      options);
  // Of the split itself nothing is recorded.
  const std::vector<CollectiveRecord> records = log->records();
  ASSERT_EQ(records.size(), 8u);
  EXPECT_EQ(records[0].op, CollectiveOp::kAllGather);
  EXPECT_EQ(records[0].group, "replicate");
  EXPECT_EQ(records[6].group, "replicate/reduce");
  EXPECT_EQ(records[7].group, "");
}

TEST(CommMesh, TwoAxesCutTheWorldIntoRowsAndColumns) {
  RunRanks(6, [](World& w) {
    const Mesh mesh = w.MakeMesh(3);
    EXPECT_EQ(mesh.size(), 6);
    EXPECT_EQ(mesh.shard_size(), 3);
    EXPECT_EQ(mesh.replicate_size(), 2);
    EXPECT_EQ(mesh.shard_rank(), w.rank() % 3);
    EXPECT_EQ(mesh.replicate_rank(), w.rank() / 3);
    const int row = w.rank() / 3 * 3;
    CheckCollectives(mesh.shard_group(), w.rank(), {row, row + 1, row + 2}, 1021);
    const int column = w.rank() % 3;
    CheckCollectives(mesh.replicate_group(), w.rank(), {column, column + 3}, 1021);
    CheckCollectives(mesh.group(), w.rank(), {0, 1, 2, 3, 4, 5}, 11);
    EXPECT_EQ(&w.MakeMesh(3).slot(), &mesh.slot()) << "one mesh for all callers";
    EXPECT_EQ(&w.MakeMesh(6).slot(), &w.mesh().slot());
    const Mesh again(mesh.groups(), nullptr, mesh.device(), mesh.log());
    EXPECT_EQ(&again.replicate_group(), &mesh.replicate_group());
    EXPECT_EQ(mesh.shared_replicate_group().get(), &mesh.replicate_group());
    EXPECT_EQ(mesh.shared_group().get(), &w.group());
  });
}

TEST(CommMesh, ShardsOfOneRankAreAllReplicas) {
  RunRanks(2, [](World& w) {
    const Mesh mesh = w.MakeMesh(1);
    EXPECT_EQ(mesh.replicate_size(), 2);
    CheckCollectives(mesh.shard_group(), w.rank(), {w.rank()}, 9000);
    CheckCollectives(mesh.replicate_group(), w.rank(), {0, 1}, 9000);
  });
}

TEST(CommMesh, OneAxisHasOneReplica) {
  RunRanks(2, [](World& w) {
    const Mesh mesh = w.mesh();
    EXPECT_EQ(mesh.size(), 2);
    EXPECT_EQ(&mesh.group(), &mesh.shard_group());
    EXPECT_EQ(mesh.replicate_size(), 1);
    EXPECT_EQ(mesh.replicate_rank(), 0);
    float one = 1.0f;
    mesh.replicate_group().AllReduce(&one, 1, DType::kF32);
    EXPECT_EQ(one, 1.0f);
  });
}

TEST(CommMesh, ShardSizeMustDivideTheWorld) {
  RunRanks(4, [](World& w) {
    for (int shard_size : {-2, 0, 3, 8}) {
      const Error error = Thrown([&] { w.MakeMesh(shard_size); });
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      ExpectHas(error, {"shard_size is " + std::to_string(shard_size), "4 ranks"});
    }
  });
}

}  // namespace
}  // namespace sherd
