// Checks in front of a group that compares nothing itself: ranks are threads that read each other's
// buffers, whatever the others call.
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/comm/checked_group.h"
#include "tests/runtime/comm_support.h"

namespace sherd {
namespace {

using testing::ExpectHas;
using testing::RankOptions;
using testing::RunRanks;
using testing::Thrown;

// Where the ranks of one group meet.
struct Room {
  std::vector<const void*> buffers;
  int waiting = 0;
  int64_t rounds = 0;
};

// What all groups of all ranks share.
struct House {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Room> rooms;  // by the way to the group
  absl::Status aborted;
  int64_t collectives = 0;  // of all ranks, on groups whose name is not "check"
};

class ThreadGroup final : public ProcessGroup {
 public:
  ThreadGroup(std::shared_ptr<House> house, std::string name, int rank, int size)
      : ProcessGroup(rank, size, name), house_(std::move(house)), name_(std::move(name)) {
    std::lock_guard<std::mutex> lock(house_->mutex);
    house_->rooms[name_].buffers.resize(static_cast<size_t>(size));
  }

  void Abort(const absl::Status& why) noexcept override {
    std::lock_guard<std::mutex> lock(house_->mutex);
    if (house_->aborted.ok()) house_->aborted = absl::AbortedError(why.message());
    house_->changed.notify_all();
  }
  absl::Status Failure() const override {
    std::lock_guard<std::mutex> lock(house_->mutex);
    return house_->aborted;
  }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    Together(shard, [&](int r, const void* theirs) {
      std::memcpy(static_cast<char*>(full) + r * call.bytes, theirs,
                  static_cast<size_t>(call.bytes));
    });
  }
  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    SumInto(full, static_cast<float*>(shard), rank() * call.bytes / 4, call.bytes / 4);
  }
  void DoAllReduce(const CollectiveCall& call, void* data) override {
    std::vector<float> sum(static_cast<size_t>(call.bytes / 4));
    SumInto(data, sum.data(), 0, call.bytes / 4);
    std::memcpy(data, sum.data(), static_cast<size_t>(call.bytes));
  }
  void DoBroadcast(const CollectiveCall& call, void* data) override {
    Together(data, [&](int r, const void* theirs) {
      if (r == call.root && r != rank()) {
        std::memcpy(data, theirs, static_cast<size_t>(call.bytes));
      }
    });
  }
  void DoBarrier(const CollectiveCall&) override {
    Together(nullptr, [](int, const void*) {});
  }
  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    return std::make_unique<ThreadGroup>(house_, name_ + "/" + name, rank(), size());
  }
  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) override {
    int place = 0;
    while (ranks[static_cast<size_t>(place)] != rank()) ++place;
    return std::make_unique<ThreadGroup>(house_, name_ + "/" + name + std::to_string(ranks[0]),
                                         place, static_cast<int>(ranks.size()));
  }

 private:
  void SumInto(const void* mine, float* out, int64_t begin, int64_t elems) {
    std::vector<float> sum(static_cast<size_t>(elems));
    Together(mine, [&](int, const void* theirs) {
      for (int64_t i = 0; i < elems; ++i) {
        sum[static_cast<size_t>(i)] += static_cast<const float*>(theirs)[begin + i];
      }
    });
    std::memcpy(out, sum.data(), static_cast<size_t>(elems * 4));
  }

  // Shows `mine` to all, hands every rank's to `use`, and returns when all have done so.
  template <typename Use>
  void Together(const void* mine, const Use& use) {
    std::unique_lock<std::mutex> lock(house_->mutex);
    ThrowIfError(house_->aborted);
    if (name_.find("check") == std::string::npos) ++house_->collectives;
    Room& room = house_->rooms[name_];
    room.buffers[static_cast<size_t>(rank())] = mine;
    Meet(lock, room, /*heed_abort=*/true);
    for (int r = 0; r < size(); ++r) use(r, room.buffers[static_cast<size_t>(r)]);
    // All have met, so all come: until then their buffers stay.
    Meet(lock, room, /*heed_abort=*/false);
  }

  void Meet(std::unique_lock<std::mutex>& lock, Room& room, bool heed_abort) {
    const int64_t round = room.rounds;
    if (++room.waiting == size()) {
      room.waiting = 0;
      ++room.rounds;
      house_->changed.notify_all();
      return;
    }
    house_->changed.wait(
        lock, [&] { return room.rounds != round || (heed_abort && !house_->aborted.ok()); });
    if (room.rounds != round) return;
    --room.waiting;
    ThrowError(Error(house_->aborted));
  }

  const std::shared_ptr<House> house_;
  const std::string name_;
};

// Calls `body` for each rank on a thread of its own, with a checked group. Returns how many
// collectives reached the groups behind it.
int64_t RunChecked(int size, CheckOptions options,
                   const std::function<void(ProcessGroup&, CallChecks&)>& body) {
  auto house = std::make_shared<House>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      CheckOptions own = options;
      own.checks = std::make_shared<CallChecks>();
      std::unique_ptr<ProcessGroup> group =
          MakeCheckedGroup(std::make_shared<ThreadGroup>(house, "threads", rank, size), own);
      body(*group, *own.checks);
    });
  }
  for (std::thread& thread : ranks) thread.join();
  return house->collectives;
}

void Gather(ProcessGroup& group, const std::string& caller) {
  std::vector<int> full(static_cast<size_t>(group.size()));
  const int own = group.rank();
  group.AllGather(&own, full.data(), sizeof(own), {.module_path = caller});
  EXPECT_EQ(full.back(), group.size() - 1);
}

TEST(CommChecked, CallsThatAgreeGoThroughUnchanged) {
  const int64_t collectives = RunChecked(3, {}, [](ProcessGroup& group, CallChecks& checks) {
    Gather(group, "unit 'a'");
    float data[6] = {1, 2, 3, 4, 5, static_cast<float>(group.rank())};
    group.AllReduce(data, 6, DType::kF32);
    EXPECT_EQ(data[0], 3.0f);
    EXPECT_EQ(data[5], 3.0f);
    float shard[2];
    group.ReduceScatter(data, shard, 2, DType::kF32, false);
    EXPECT_EQ(shard[0], static_cast<float>(9 + 18 * group.rank()));
    group.Broadcast(shard, 8, 2);
    EXPECT_EQ(shard[0], 45.0f);
    group.Barrier();
    group.Fork("other")->Barrier();
    EXPECT_EQ(checks.compared(), 6);
  });
  EXPECT_EQ(collectives, 18);
}

TEST(CommChecked, EveryKindOfDifferenceIsNamedOnAllRanksBeforeAnythingIsSent) {
  struct Case {
    std::function<void(ProcessGroup&, float*, bool)> call;
    std::string first;
    std::string odd;
  };
  const Case cases[] = {
      {[](ProcessGroup& g, float* d, bool odd) { odd ? g.Barrier() : g.Broadcast(d, 8, 0); },
       "broadcast of 8 bytes from rank 0 (#1)", "barrier (#1)"},
      {[](ProcessGroup& g, float* d, bool odd) { g.AllReduce(d, odd ? 3 : 2, DType::kF32); },
       "all_reduce of 8 bytes of f32 (#1)", "all_reduce of 12 bytes of f32 (#1)"},
      {[](ProcessGroup& g, float* d, bool odd) {
         g.AllReduce(d, 2, odd ? DType::kI32 : DType::kF32);
       },
       "all_reduce of 8 bytes of f32 (#1)", "all_reduce of 8 bytes of i32 (#1)"},
      {[](ProcessGroup& g, float* d, bool odd) { g.Broadcast(d, 8, odd ? 1 : 0); },
       "from rank 0 (#1)", "from rank 1 (#1)"},
      {[](ProcessGroup& g, float*, bool odd) { Gather(g, odd ? "unit 'b'" : "unit 'a'"); },
       "all_gather of 4 bytes (#1) in unit 'a'", "all_gather of 4 bytes (#1) in unit 'b'"},
  };
  for (const Case& c : cases) {
    const int64_t collectives = RunChecked(3, {}, [&](ProcessGroup& group, CallChecks&) {
      float data[4] = {};
      const Error error = Thrown([&] { c.call(group, data, group.rank() == 1); });
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition) << error.what();
      ExpectHas(error, {"rank 0 called ", c.first, "rank 1 called ", c.odd});
      ExpectHas(Thrown([&] { group.Barrier(); }), {"rank 1 called"});
    });
    EXPECT_EQ(collectives, 0) << c.odd;
  }
}

TEST(CommChecked, ForksAndPartsAreCheckedAndNameRanksOfTheWhole) {
  RunChecked(4, {}, [](ProcessGroup& group, CallChecks&) {
    std::unique_ptr<ProcessGroup> fork = group.Fork("fork");
    fork->Barrier();
    const std::vector<int> ranks =
        group.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    std::unique_ptr<ProcessGroup> part = group.Split("part", ranks);
    std::unique_ptr<ProcessGroup> deep = part->Fork("deep");
    group.Barrier();  // nobody fails before all are here
    const Error error = Thrown([&] {
      Gather(*deep, group.rank() == 3 ? "unit 'b'" : "unit 'a'");
      group.Barrier();
    });
    ExpectHas(error, {"rank 1 called all_gather of 4 bytes (#1) in unit 'a'",
                      "rank 3 called all_gather of 4 bytes (#1) in unit 'b'"});
  });
}

TEST(CommChecked, OnlyTheFirstCallsOfEachGroupAreCompared) {
  RunChecked(2, {.calls = 2}, [](ProcessGroup& group, CallChecks& checks) {
    std::unique_ptr<ProcessGroup> fork = group.Fork("fork");
    for (int i = 0; i < 5; ++i) group.Barrier();
    for (int i = 0; i < 5; ++i) fork->Barrier();
    EXPECT_EQ(checks.compared(), 4);
    // Unseen from here on: the group behind does not compare.
    Gather(group, group.rank() == 0 ? "unit 'a'" : "unit 'b'");
  });
}

TEST(CommChecked, CheckingIsSwitchedOffAndOn) {
  RunChecked(2, {}, [](ProcessGroup& group, CallChecks& checks) {
    group.Barrier();
    checks.SetChecking(false);
    Gather(group, group.rank() == 0 ? "unit 'a'" : "unit 'b'");
    EXPECT_EQ(checks.compared(), 1);
    checks.SetChecking(true);
    const Error error = Thrown([&] { Gather(group, group.rank() == 0 ? "unit 'a'" : "unit 'b'"); });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(error, {"(#3) in unit 'a'", "(#3) in unit 'b'"});
  });
}

TEST(CommChecked, OverGlooTypesOfReductionsArePassedOn) {
  RankOptions options;
  options.wrap_group = [](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return MakeCheckedGroup(std::move(group));
  };
  RunRanks(
      2,
      [](World& w) {
        // 257 is no bf16: each rank's is rounded to 256 on its way.
        float data[2] = {257.0f, 1.0f};
        float sum = 0;
        w.group().ReduceScatter(data, &sum, 1, {DType::kF32, DType::kBF16, DType::kF32}, false);
        EXPECT_EQ(sum, w.rank() == 0 ? 512.0f : 2.0f);
        w.group().AllReduce(data, 2, DType::kF32, DType::kBF16);
        EXPECT_EQ(data[0], 512.0f);
        EXPECT_EQ(w.MakeMesh(1).replicate_group().size(), 2);
      },
      options);
}

}  // namespace
}  // namespace sherd
