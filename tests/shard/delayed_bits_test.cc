// Ranks and streams that come late at random give the bits of those that do not, whatever is cut,
// gathered ahead, summed up before it is sent, or kept as a list.

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/comm/delayed_group.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

struct Case {
  int ranks = 2;
  const char* stage_name = "";
  Stage stage;
  int prefetch = 1;
  bool accumulate = false;  // the first of two backwards of a step sends nothing
  bool list = false;        // the last two blocks are one unit
};

std::string NameOf(const Case& c) {
  return absl::StrCat(c.ranks, " ranks, ", c.stage_name, ", prefetch ", c.prefetch,
                      c.accumulate ? ", accumulating" : "", c.list ? ", with a list" : "");
}

// What two steps of two backwards each leave behind: gradients of the last one, and values.
struct Left {
  Whole gradients, values;
};

Left TrainOn(World& world, const Case& c) {
  ShardModel model;
  const FullyShardOptions options{.prefetch = c.prefetch, .stage = c.stage};
  FullyShard(model.block(0), world.mesh(), Sums(options));
  if (c.list) {
    FullyShard({&model.block(1), &model.block(2)}, world.mesh(), Sums(options));
  } else {
    for (int i : {1, 2}) FullyShard(model.block(i), world.mesh(), Sums(options));
  }
  FullyShard(model, world.mesh(), Sums(options));
  Initialize(model, world.device(), 1);
  PoisonFreeMemory(world.device());
  AdamW optimizer(model.parameters());
  Tape tape;
  Left left;
  for (uint64_t step = 0; step < 2; ++step) {
    for (const bool last : {false, true}) {
      SetGradientSync(model, c.accumulate && !last ? GradientSync::kNone : GradientSync::kFull);
      const Recording on(tape);
      const Variable x = InputOf(world.device(), world.rank(), 2 * step + (last ? 1 : 0));
      tape.Backward(Energy(model(x, {0, 1, 2, 0})));
      tape.Reset();
    }
    left.gradients = GradientsOf(model, &world.group());
    optimizer.Step({.learning_rate = 1e-2});
    for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
  }
  left.values = ValuesOf(model, &world.group());
  return left;
}

Left Train(const Case& c, const RankOptions& options) {
  std::mutex mutex;
  Left left;
  RunRanks(
      c.ranks,
      [&](World& world) {
        Left own = TrainOn(world, c);
        const std::lock_guard<std::mutex> lock(mutex);
        if (world.rank() == 0) left = std::move(own);
      },
      options);
  return left;
}

RankOptions Delayed(uint64_t seed) {
  RankOptions options;
  options.wrap_group =
      [seed](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return MakeDelayedGroup(std::move(group), {.seed = seed, .max_delay = absl::Microseconds(700)});
  };
  return options;
}

TEST(DelayedBits, AreThoseWithoutDelays) {
  uint64_t seed = 1;
  const auto expect_same = [&](const Case& c) {
    SCOPED_TRACE(NameOf(c));
    const Left want = Train(c, {});
    const Left got = Train(c, Delayed(seed++));
    EXPECT_FALSE(want.gradients.empty());
    EXPECT_TRUE(got.gradients == want.gradients);
    EXPECT_TRUE(got.values == want.values);
  };
  int turn = 0;
  for (const auto& [name, stage] :
       {std::pair("zero 3", kZero3), std::pair("zero 2", kZero2), std::pair("zero 1", kZero1),
        std::pair("data parallel", kDataParallel)}) {
    for (const bool accumulate : {false, true}) {
      for (const bool list : {false, true}) {
        for (const int prefetch : {0, 1, 2}) {
          expect_same({2, name, stage, prefetch, accumulate, list});
        }
        expect_same({3, name, stage, turn++ % 3, accumulate, list});
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
