// What ranks see when one of them calls something else, aborts, is late, or goes away.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/comm/gloo_group.h"
#include "sherd/runtime/comm/local_group.h"
#include "tests/runtime/comm_support.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;
using testing::ExpectHas;
using testing::RankOptions;
using testing::RunFailing;
using testing::RunRanks;
using testing::Thrown;

// Far less than any deadline in use, and enough for a busy machine.
constexpr std::chrono::seconds kSoon{5};

TEST(CommMismatch, DifferentOpsAreNamedOnAllRanks) {
  RunFailing(3, [](World& w) {
    std::vector<float> full(768);
    std::vector<float> shard(256);
    w.group().Barrier();
    const Error error = Thrown([&] {
      if (w.rank() == 1) {
        w.group().ReduceScatter(full.data(), shard.data(), 256, DType::kF32, false);
      } else {
        w.group().AllGather(shard.data(), full.data(), 1024);
      }
    });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(error, {"rank 0 called all_gather of 1024 bytes (#2)",
                      "rank 1 called reduce_scatter of 1024 bytes of f32 (#2)"});
    // The group is dead, with the same error.
    const Error later = Thrown([&] { w.group().Barrier(); });
    EXPECT_EQ(later.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(later, {"rank 1 called reduce_scatter"});
  });
}

TEST(CommMismatch, SizesTypesRootsAndOrderMustAgree) {
  auto differs = [](auto call, const std::string& what) {
    RunFailing(2, [&](World& w) {
      const Error error = Thrown([&] { call(w.group(), w.rank()); });
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
      ExpectHas(error, {what});
    });
  };
  std::vector<double> a(64);
  std::vector<double> b(64);
  auto buffer = [&](int rank) { return rank == 0 ? a.data() : b.data(); };
  differs([&](ProcessGroup& g, int r) { g.AllReduce(buffer(r), 8 + r, DType::kF32); },
          "rank 1 called all_reduce of 36 bytes");
  differs([&](ProcessGroup& g,
              int r) { g.AllReduce(buffer(r), 8, r == 0 ? DType::kF32 : DType::kI32); },
          "rank 1 called all_reduce of 32 bytes of i32");
  differs([&](ProcessGroup& g, int r) { g.Broadcast(buffer(r), 8, r); }, "from rank 1");
  differs([&](ProcessGroup& g, int r) { g.Fork(r == 0 ? "x" : "y")->Barrier(); },
          "fork of another name");
}

TEST(CommAbort, WakesEveryRankAndForkWithRankAndText) {
  RunFailing(3, [](World& w) {
    std::unique_ptr<ProcessGroup> fork = w.group().Fork("other");
    w.group().Barrier();
    if (w.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      w.group().Abort(absl::InternalError("the loss is NaN in step 12"));
      w.group().Abort(absl::InternalError("a second reason"));
    }
    const auto start = Clock::now();
    Error on_fork(absl::StatusCode::kOk, "");
    std::thread other([&] { on_fork = Thrown([&] { fork->Barrier(); }); });
    std::vector<float> data(8);
    const Error error = Thrown([&] { w.group().AllReduce(data.data(), 8, DType::kF32); });
    other.join();
    EXPECT_LT(Clock::now() - start, kSoon);
    for (const Error& e : {error, on_fork}) {
      EXPECT_EQ(e.code(), absl::StatusCode::kAborted);
      ExpectHas(e, {"rank 2 aborted", "the loss is NaN in step 12"});
    }
  });
}

TEST(CommAbort, TellsTheLastCollectiveOfTheRankThatAborted) {
  RunFailing(2, [](World& w) {
    std::vector<float> data(8);
    w.group().AllReduce(data.data(), 8, DType::kF32, {.module_path = "unit 'head'"});
    if (w.rank() == 1) w.group().Abort(absl::InternalError("no memory"));
    ExpectHas(
        Thrown([&] { w.group().Barrier(); }),
        {"rank 1 aborted: no memory; the last collective of rank 1 was all_reduce of 32 bytes "
         "of f32 (#1) in unit 'head' on 'world'"});
  });
}

TEST(CommAbort, TellsTheCollectiveThatRunsInAnotherThread) {
  RunFailing(2, [](World& w) {
    std::unique_ptr<ProcessGroup> gather = w.group().Fork("gather");
    w.group().Barrier();
    if (w.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      ExpectHas(Thrown([&] { w.group().Barrier(); }),
                {"rank 0 aborted: enough; rank 0 was in all_gather of 4 bytes (#1) in unit 'b' on "
                 "'gather'"});
      return;
    }
    std::thread other([&] {
      float full[2] = {};
      Thrown([&] { gather->AllGather(full, full, 4, {.module_path = "unit 'b'"}); });
    });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    w.group().Abort(absl::CancelledError("enough"));
    other.join();
  });
}

TEST(CommAbort, WakesARankInTheMiddleOfALargeTransfer) {
  RunFailing(2, [](World& w) {
    std::vector<char> full(size_t{128} << 20);
    std::vector<char> shard(size_t{64} << 20);
    w.group().Barrier();
    std::thread abort;
    if (w.rank() == 1) {
      abort = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(8));
        w.group().Abort(absl::CancelledError("enough"));
      });
    }
    const Error error = Thrown([&] {
      for (int i = 0; i < 100; ++i) w.group().AllGather(shard.data(), full.data(), 64 << 20);
    });
    ExpectHas(error, {"rank 1 aborted: enough"});
    if (abort.joinable()) abort.join();
  });
}

// A store whose reader never hears of failures.
class DeafStore final : public Store {
 public:
  explicit DeafStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  absl::Status Set(std::string_view key, std::string_view value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    return store_->Get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    if (key.find("failure") != std::string_view::npos) return std::optional<std::string>();
    return store_->TryGet(key);
  }
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    return store_->Add(key, delta);
  }
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    return store_->CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> Delete(std::string_view key) override { return store_->Delete(key); }

 private:
  const std::shared_ptr<Store> store_;
};

TEST(CommAbort, WakesOurOwnThreadWhateverThePeersDo) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  std::atomic<bool> done{false};
  std::thread idle([&] {
    absl::StatusOr<World> w =
        World::FromStore(std::make_shared<DeafStore>(store), 1, 2, {.threads = 1});
    ASSERT_TRUE(w.ok()) << w.status();
    for (int i = 0; i < 200 && !done; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(done) << "rank 0 was still waiting";
  });
  absl::StatusOr<World> w = World::FromStore(store, 0, 2, {.threads = 1});
  ASSERT_TRUE(w.ok()) << w.status();
  std::thread abort([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    w->group().Abort(absl::CancelledError("stop"));
  });
  ExpectHas(Thrown([&] { w->group().Barrier(); }), {"rank 0 aborted: stop"});
  done = true;
  abort.join();
  idle.join();
}

TEST(CommAbort, LocalGroupAbortsToo) {
  std::unique_ptr<ProcessGroup> group = MakeLocalGroup();
  std::unique_ptr<ProcessGroup> fork = group->Fork("f");
  fork->Barrier();
  group->Abort(absl::InternalError("why"));
  ExpectHas(Thrown([&] { fork->Barrier(); }), {"rank 0 aborted: why"});
}

TEST(CommDeadline, NamesTheRanksThatDidNotCall) {
  RankOptions options;
  options.collective_timeout = absl::Milliseconds(700);
  RunFailing(
      4,
      [](World& w) {
        if (w.rank() == 1 || w.rank() == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3000));
          const Error error = Thrown([&] { w.group().Barrier(); });
          EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
          ExpectHas(error, {"on rank", "ranks 1, 3 of 4 did not call it"});
          return;
        }
        std::vector<float> data(4);
        const auto start = Clock::now();
        const Error error = Thrown(
            [&] { w.group().AllReduce(data.data(), 4, DType::kF32, {.module_path = "head"}); });
        const auto took = Clock::now() - start;
        EXPECT_GE(took, std::chrono::milliseconds(600));
        EXPECT_LT(took, std::chrono::milliseconds(2800));
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
        ExpectHas(error, {"all_reduce of 16 bytes of f32 (#1)", "ranks 1, 3 of 4 did not call it",
                          "700ms", "in head"});
      },
      options);
}

// Piles up work until a deadline strikes somewhere within a collective, wherever that is.
TEST(CommDeadline, StrikesAtAnyPointOfACollective) {
  for (int milliseconds : {1, 2, 5, 10, 20, 40, 70}) {
    RankOptions options;
    options.collective_timeout = absl::Milliseconds(milliseconds);
    options.piece_bytes = 64 * 1024;
    const auto start = Clock::now();
    RunFailing(
        2,
        [](World& w) {
          std::vector<float> data(size_t{64} << 20, 1.0f);
          const Error error = Thrown([&] {
            // Ever larger, so that a fast machine comes to its deadline too.
            for (int64_t elems = int64_t{4} << 20; elems <= int64_t{64} << 20; elems *= 2) {
              for (int i = 0; i < 8; ++i) w.group().AllReduce(data.data(), elems, DType::kF32);
            }
            w.group().Abort(absl::InternalError("this machine is too fast for the test"));
            w.group().Barrier();
          });
          EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded) << error.what();
        },
        options);
    EXPECT_LT(Clock::now() - start, 2 * kSoon);
  }
}

// A store whose server has stopped: from a moment on it answers nobody, for as long as the test
// runs.
class StoppedStore final : public Store {
 public:
  explicit StoppedStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  ~StoppedStore() override { Stop(false); }
  void Stop(bool stopped) {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = stopped;
    changed_.notify_all();
  }
  absl::Status Set(std::string_view key, std::string_view value) override {
    return Answer().Set(key, value);
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    return Answer().Get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    return Answer().TryGet(key);
  }
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    return Answer().Add(key, delta);
  }
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    return Answer().CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> Delete(std::string_view key) override { return Answer().Delete(key); }

 private:
  Store& Answer() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !stopped_; });
    return *store_;
  }
  const std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
};

TEST(CommDeadline, StrikesAlsoWhenTheStoreAnswersNobody) {
  const auto store = std::make_shared<StoppedStore>(MakeMemoryStore());
  std::atomic<int> ended{0};
  std::vector<std::thread> ranks;
  for (int rank : {0, 1, 2}) {
    ranks.emplace_back([&, rank] {
      Clock::time_point start;
      {
        absl::StatusOr<World> w = World::FromStore(
            store, rank, 3, {.threads = 1, .collective_timeout = absl::Seconds(2)});
        ASSERT_TRUE(w.ok()) << w.status();
        w->group().Barrier();
        if (rank == 0) {
          store->Stop(true);
          while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          store->Stop(false);
          return;
        }
        start = Clock::now();
        const Error error = Thrown([&] { w->group().Barrier(); });
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
        ExpectHas(error, {"barrier (#2)", "rank 0 of 3 did not call it within 2s"});
      }
      EXPECT_LT(Clock::now() - start, 2 * kSoon);
      // Its World has gone too, without an answer.
      ++ended;
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

TEST(CommLoss, ALeavingRankIsNamed) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  auto join = [&](int rank) {
    absl::StatusOr<World> world = World::FromStore(store, rank, 3, {.threads = 1});
    EXPECT_TRUE(world.ok()) << world.status();
    return *std::move(world);
  };
  auto stay = [&](int rank) {
    World w = join(rank);
    w.group().Barrier();
    const auto start = Clock::now();
    std::vector<float> data(4);
    const Error error = Thrown([&] { w.group().AllReduce(data.data(), 4, DType::kF32); });
    EXPECT_LT(Clock::now() - start, kSoon);
    EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
    ExpectHas(error, {"rank 2 left the group of 3",
                      " was in all_reduce of 16 bytes of f32 (#2) on 'world'"});
  };
  std::thread zero(stay, 0);
  std::thread one(stay, 1);
  {
    World w = join(2);
    w.group().Barrier();
  }
  zero.join();
  one.join();
}

TEST(CommLoss, RanksThatLeaveAtDifferentTimesDisturbNobody) {
  // Each leaves as soon as its own part is done, while others may still be receiving.
  for (int round = 0; round < 20; ++round) {
    const std::shared_ptr<Store> store = MakeMemoryStore();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        absl::StatusOr<World> w = World::FromStore(store, rank, 3, {.threads = 1});
        ASSERT_TRUE(w.ok()) << w.status();
        std::vector<int32_t> data(200000, rank + 1);
        w->group().AllReduce(data.data(), 200000, DType::kI32);
        w->group().Broadcast(data.data(), 800000, 0);
        EXPECT_EQ(data.back(), 6);
      });
    }
    for (std::thread& thread : ranks) thread.join();
  }
}

TEST(CommLoss, AnExceptionOnOneRankEndsTheOthersAndComesBack) {
  const auto start = Clock::now();
  std::string caught;
  try {
    RunRanks(3, [](World& w) {
      if (w.rank() == 1) throw std::runtime_error("rank 1 has a bug");
      w.group().Barrier();
    });
  } catch (const std::runtime_error& error) {
    caught = error.what();
  } catch (const Error& error) {
    caught = error.what();
  }
  EXPECT_EQ(caught, "rank 1 has a bug");
  EXPECT_LT(Clock::now() - start, kSoon);
}

TEST(CommConnect, MissingRanksAreNamed) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  std::vector<std::thread> ranks;
  for (int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      absl::StatusOr<World> w = World::FromStore(
          store, rank, 4, {.threads = 1, .rendezvous_timeout = absl::Milliseconds(600)});
      EXPECT_EQ(w.status().code(), absl::StatusCode::kDeadlineExceeded);
      const std::string text(w.status().message());
      EXPECT_NE(text.find("ranks 2, 3 of 4 did not arrive within 600ms"), std::string::npos)
          << text;
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

// Rank 1 arrives, is gone before the connections are made, and has said why or not.
absl::Status ConnectWithoutPeer(std::string_view failure) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  EXPECT_TRUE(store->Set("gloo/here/1", "1").ok());
  EXPECT_TRUE(store->Add("gloo/here/count", 1).ok());
  if (!failure.empty()) {
    EXPECT_TRUE(store->Set("gloo/failure", failure).ok());
  }
  return World::FromStore(store, 0, 2,
                          {.threads = 1, .rendezvous_timeout = absl::Milliseconds(300)})
      .status();
}

TEST(CommConnect, APeerThatIsGoneBeforeConnectingIsAnError) {
  const absl::Status silent = ConnectWithoutPeer("");
  EXPECT_EQ(silent.code(), absl::StatusCode::kDeadlineExceeded) << silent;
  EXPECT_NE(silent.message().find("rank 0 of 2"), std::string::npos) << silent;
  const absl::Status said = ConnectWithoutPeer("2\nrank 1 aborted: no disk");
  EXPECT_EQ(said.message(), "rank 1 aborted: no disk");
}

TEST(CommConnect, SignalMaskOfTheCallerIsUntouched) {
  RunRanks(2, [](World& w) {
    w.group().Barrier();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGPIPE), 0);
    EXPECT_EQ(sigismember(&mask, SIGTERM), 0);
  });
}

}  // namespace
}  // namespace sherd
