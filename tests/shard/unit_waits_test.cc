// What a unit waits for before it reads, frees or adds to memory that a slow collective still
// writes.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/runtime/comm/forwarding_group.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/unit.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

// Makes the collectives of the forks of one name late, so late that whoever does not wait for them
// is seen, and counts those that have ended.
class LateGroup final : public ForwardingGroup {
 public:
  LateGroup(std::shared_ptr<ProcessGroup> inner, std::string late, std::atomic<int>& ended,
            const std::string& name = "")
      : ForwardingGroup(std::move(inner)), late_(std::move(late)), name_(name), ended_(ended) {}

 protected:
  void Before(const CollectiveCall&) override {
    if (name_ == late_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  void After(const CollectiveCall&) override {
    if (name_ == late_) ++ended_;
  }
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string& name) override {
    return std::make_unique<LateGroup>(std::move(inner), late_, ended_, name);
  }

 private:
  const std::string late_;
  const std::string name_;
  std::atomic<int>& ended_;
};

// `body` on each of two ranks, with a unit of two parameters of 5 and 4 elements whose own pieces
// are 7.
void WithUnit(const std::string& late, const Stage& stage,
              const std::function<void(Unit&, const std::atomic<int>& ended)>& body) {
  std::vector<std::atomic<int>> ended(2);
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    auto& own = ended[static_cast<size_t>(group->rank())];
    return std::make_shared<LateGroup>(std::move(group), late, own);
  };
  RunRanks(
      2,
      [&](World& world) {
        Unit unit("unit", {{"a", {5}}, {"b", {4}}}, ShardContext::Of(world.mesh()),
                  {.stage = stage});
        unit.SetPrefetch([] { return int64_t{1}; }, 0);
        for (int i = 0; i < unit.parameters(); ++i) {
          if (unit.local(i).numel() > 0) kernels::Fill(unit.local(i), 7.0);
        }
        body(unit, ended[static_cast<size_t>(world.rank())]);
      },
      options);
}

TEST(UnitWaits, WhatWasGatheredForNothingIsFreedWhenItsGatherHasEnded) {
  WithUnit("gather", kZero3, [](Unit& unit, const std::atomic<int>& ended) {
    ASSERT_TRUE(unit.Prefetch());
    unit.DropPrefetched();
    EXPECT_EQ(ended, 1);
    EXPECT_FALSE(unit.unsharded());
  });
}

TEST(UnitWaits, AScopeReadsWhatAGatherForNothingBringsWhenThatHasEnded) {
  WithUnit("gather", kZero1, [](Unit& unit, const std::atomic<int>& ended) {
    ASSERT_TRUE(unit.Prefetch());
    unit.DropPrefetched();  // whose memory stays
    unit.EnterForward(1);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(unit.full(0).ToHost<float>(), std::vector<float>(5, 7.0f));
    EXPECT_EQ(unit.full(1).ToHost<float>(), std::vector<float>(4, 7.0f));
    unit.ExitForward(AfterScope::kReshard);
  });
}

TEST(UnitWaits, AGradientThatWasClearedBeginsAfterTheReductionThatStillWritesIt) {
  WithUnit("reduce", kZero3, [](Unit& unit, const std::atomic<int>&) {
    for (const double value : {1.0, 10.0}) {
      unit.BeginBackward(1);
      for (int i = 0; i < unit.parameters(); ++i) {
        kernels::Fill(unit.TakeGradient(i).tensor, value);
      }
      unit.EndBackward();
      if (value == 1.0) unit.ClearGradient(1);
    }
    for (int i = 0; i < unit.parameters(); ++i) {
      const auto elems = static_cast<size_t>(unit.local(i).numel());
      EXPECT_EQ(unit.LocalGradient(i).ToHost<float>(),
                std::vector<float>(elems, i == 0 ? 22.0f : 20.0f))
          << "parameter " << i;
    }
  });
}

}  // namespace
}  // namespace sherd::testing
