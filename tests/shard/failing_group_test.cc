// A collective that fails on one rank alone fails the step there at once, and then on the others.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/comm/forwarding_group.h"
#include "sherd/runtime/core/events.h"
#include "sherd/shard/context.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

// Throws in the `n`th collective of one kind, on rank 0, without telling anybody: as if memory ran
// out there.
struct Plan {
  CollectiveOp op = CollectiveOp::kAllGather;
  int n = 1;
  int steps = 3;
};

class FailingGroup final : public ForwardingGroup {
 public:
  FailingGroup(std::shared_ptr<ProcessGroup> inner, Plan plan,
               std::shared_ptr<std::atomic<int>> calls)
      : ForwardingGroup(std::move(inner)), plan_(plan), calls_(std::move(calls)) {}

 protected:
  void Before(const CollectiveCall& call) override {
    if (rank() != 0 || call.op != plan_.op || ++*calls_ != plan_.n) return;
    ThrowError(Error(absl::StatusCode::kResourceExhausted, "injected"));
  }
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string&) override {
    return std::make_unique<FailingGroup>(std::move(inner), plan_, calls_);
  }

 private:
  const Plan plan_;
  const std::shared_ptr<std::atomic<int>> calls_;
};

class FailingGroupTest : public ::testing::TestWithParam<std::pair<const char*, Plan>> {};

TEST_P(FailingGroupTest, EndsTheStepOnAllRanks) {
  RankOptions options;
  options.wrap_group = [](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return std::make_shared<FailingGroup>(std::move(group), GetParam().second,
                                          std::make_shared<std::atomic<int>>(0));
  };
  std::promise<void> other_ended;
  std::shared_future<void> other = other_ended.get_future().share();
  const auto run = [&](World& world) {
    ShardModel model(2);
    for (auto& block : model.blocks) FullyShard(*block, world.mesh(), Sums());
    FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true}));
    Initialize(model, world.device(), 1);
    Tape tape;
    const std::string text = ErrorOf([&] {
      const Recording on(tape);
      for (int step = 0; step < GetParam().second.steps; ++step) {
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 1})));
        tape.Reset();
      }
      model.head.weight().local_grad();
    });
    EXPECT_TRUE(Contains(text, "injected"));
    if (world.rank() == 1) {
      EXPECT_TRUE(Contains(text, "rank 0"));
      other_ended.set_value();
      return;
    }
    // Rank 0 goes on living: the other one must have ended by what its step did, not by its death.
    EXPECT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    tape.Reset();
    EXPECT_TRUE(Contains(ErrorOf([&] {
                           model(InputOf(world.device(), 0), {0, 1});
                         }),
                         "an earlier step failed"));
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
  };
  EXPECT_TRUE(Contains(ErrorOf([&] { RunRanks(2, run, options); }), "injected"));
}

TEST(FailureReport, SaysWhatFailedInWhichJobAndWhatWasInFlight) {
  std::vector<std::string> reports;
  RunRanks(1,
           [&](World& world) {
             EventLog events({.rank = 0});
             const auto context = ShardContext::Of(world.mesh());
             context->SetEvents(&events);
             context->Fail("the disk is full");
             ASSERT_EQ(reports.size(), 1u);
             const std::string expected = "a step failed: the disk is full\n" + Describe(world) +
                                          "\nrank 0: 0 running, 0 queued";
             EXPECT_EQ(reports[0].substr(0, expected.size()), expected);
           },
           {.log = [&](const LogRecord& record) {
             if (record.level == LogLevel::kError) reports.emplace_back(record.text);
           }});
}

// A forward gathers root, block0, block1; a backward root, block1, block0 and reduces block1,
// block0, root.
INSTANTIATE_TEST_SUITE_P(
    Moments, FailingGroupTest,
    ::testing::Values(std::pair{"RootInForward", Plan{CollectiveOp::kAllGather, 1}},
                      std::pair{"BlockInForward", Plan{CollectiveOp::kAllGather, 2}},
                      std::pair{"OutermostScopeOfBackward", Plan{CollectiveOp::kAllGather, 4}},
                      std::pair{"InnerScopeOfBackward", Plan{CollectiveOp::kAllGather, 5}},
                      std::pair{"FirstReduction", Plan{CollectiveOp::kReduceScatter, 1}},
                      std::pair{"LastReduction", Plan{CollectiveOp::kReduceScatter, 3}},
                      std::pair{"ReductionSeenByReadingTheGradient",
                                Plan{CollectiveOp::kReduceScatter, 3, 1}}),
    [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace sherd::testing
