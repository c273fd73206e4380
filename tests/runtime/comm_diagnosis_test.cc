// Who called what, as errors tell it: callers that differ, and where ranks are that do not come.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/runtime/comm_support.h"

namespace sherd {
namespace {

using testing::ExpectHas;
using testing::RankOptions;
using testing::RunFailing;
using testing::Thrown;

void Gather(ProcessGroup& group, const std::string& caller) {
  std::vector<char> full(static_cast<size_t>(16 * group.size()));
  const char shard[16] = {};
  group.AllGather(shard, full.data(), 16, {.module_path = caller});
}

void Reduce(ProcessGroup& group, const std::string& caller) {
  const std::vector<float> full(static_cast<size_t>(4 * group.size()));
  float shard[4];
  group.ReduceScatter(full.data(), shard, 4, DType::kF32, false, {.module_path = caller});
}

TEST(CommCallers, UnitsOfEqualShapeInAnotherOrderAreNamedOnAllRanks) {
  RunFailing(3, [](World& w) {
    Gather(w.group(), "unit 'root'");
    const Error error = Thrown([&] {
      Gather(w.group(), w.rank() == 1 ? "unit 'blocks.3'" : "unit 'blocks.2'");
      Gather(w.group(), w.rank() == 1 ? "unit 'blocks.2'" : "unit 'blocks.3'");
    });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    ExpectHas(error, {"rank 0 called all_gather of 16 bytes (#2) in unit 'blocks.2'",
                      "rank 1 called all_gather of 16 bytes (#2) in unit 'blocks.3'"});
  });
}

TEST(CommCallers, WhoDoesNotSayIsNotCompared) {
  RunFailing(3, [](World& w) {
    const std::string names[] = {"", "unit 'a'", "unit 'b'"};
    Gather(w.group(), w.rank() == 2 ? "" : names[w.rank()]);
    w.group().Barrier();
    const Error error = Thrown([&] { Gather(w.group(), names[w.rank()]); });
    ExpectHas(error, {"rank 1 called all_gather of 16 bytes (#3) in unit 'a'",
                      "rank 2 called all_gather of 16 bytes (#3) in unit 'b'"});
  });
}

TEST(CommCallers, LongPathsAreComparedWholeAndShownByTheirEnd) {
  RunFailing(2, [](World& w) {
    const std::string tail = "." + std::string(100, 'x') + ".attention";
    Gather(w.group(), "model.blocks" + tail);
    const Error error = Thrown(
        [&] { Gather(w.group(), (w.rank() == 0 ? "model.blocks" : "other.blocks") + tail); });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    // 79 characters at most.
    ExpectHas(error, {"rank 0 called all_gather of 16 bytes (#2) in ..." + std::string(66, 'x') +
                      ".attention, rank 1 called"});
  });
}

TEST(CommWhereabouts, ADeadlineTellsWhereTheOthersAre) {
  RankOptions options;
  options.collective_timeout = absl::Milliseconds(1000);
  RunFailing(
      2,
      [](World& w) {
        std::unique_ptr<ProcessGroup> gather = w.group().Fork("gather");
        std::unique_ptr<ProcessGroup> reduce = w.group().Fork("reduce");
        Gather(*gather, "unit 'a'");
        Reduce(*reduce, "unit 'a'");
        if (w.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        const Error error = Thrown([&] {
          if (w.rank() == 0) Gather(*gather, "unit 'b'");
          Reduce(*reduce, "unit 'b'");
        });
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
        ExpectHas(error, {"all_gather of 16 bytes (#2) in unit 'b' on 'gather' timed out on rank 0",
                          "rank 1 of 2 did not call it within 1s; rank 1 is in reduce_scatter of "
                          "16 bytes of f32 (#2) in unit 'b' on 'reduce'"});
        EXPECT_EQ(std::string(error.what()).find("#1"), std::string::npos)
            << "of a call that ended";
        // What began meanwhile gets the same error.
        ExpectHas(Thrown([&] { Reduce(*reduce, "unit 'c'"); }), {"(#2) in unit 'b' on 'gather'"});
      },
      options);
}

TEST(CommWhereabouts, AlsoOnAForkThatWaitsHereItselfAndInParts) {
  RankOptions options;
  options.collective_timeout = absl::Milliseconds(1000);
  RunFailing(
      3,
      [](World& w) {
        std::unique_ptr<ProcessGroup> reduce = w.group().Fork("reduce");
        const std::vector<int> ranks = w.rank() == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
        std::unique_ptr<ProcessGroup> part = w.group().Split("part", ranks);
        if (w.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        // Rank 1 is where rank 0 is with its other thread; rank 2 is nowhere.
        std::thread other;
        if (w.rank() == 0) {
          other = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            Thrown([&] { Reduce(*reduce, "unit 'b'"); });
          });
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        }
        const Error error = Thrown([&] {
          if (w.rank() == 0) w.group().Barrier();
          if (w.rank() == 1) Reduce(*reduce, "unit 'b'");
          part->Barrier();
        });
        if (other.joinable()) other.join();
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
        ExpectHas(error, {"on 'world' timed out on rank 0: ranks 1, 2 of 3 did not call it within "
                          "1s; rank 1 is in reduce_scatter of 16 bytes of f32 (#1) in unit 'b' on "
                          "'reduce'"});
        EXPECT_EQ(std::string(error.what()).find("rank 2 is in"), std::string::npos);
      },
      options);
}

}  // namespace
}  // namespace sherd
