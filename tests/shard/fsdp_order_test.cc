// The order in which units are gathered, run, freed and reduced, as the event log has it.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/order.h"
#include "tests/shard/training.h"

namespace sherd::testing {
namespace {

struct Kept {
  FullyShardOptions blocks;
  std::optional<bool> root;
};

// A model of `count` blocks on two ranks, with its order.
void RunOrdered(int count, const Kept& kept,
                const std::function<void(World&, ShardModel&, Order&)>& body,
                bool checkpoint = false) {
  RunRanks(2, [&](World& world) {
    ShardModel model(count);
    for (auto& block : model.blocks) {
      if (checkpoint) Checkpoint(*block);
      FullyShard(*block, world.mesh(), Sums(kept.blocks));
    }
    FullyShard(model, world.mesh(), Sums({.reshard_after_forward = kept.root, .prefetch = 0}));
    Initialize(model, world.device(), 1);
    Order order(model);
    body(world, model, order);
  });
}

std::vector<int> UpTo(int count) {
  std::vector<int> order;
  for (int b = 0; b < count; ++b) order.push_back(b);
  return order;
}

Variable LossOf(World& world, ShardModel& model, int step) {
  return Energy(model(InputOf(world.device(), world.rank(), static_cast<uint64_t>(step)),
                      UpTo(static_cast<int>(model.blocks.size()))));
}

// Runs the steps and expects the same order in each: no parameters change but by this.
void ExpectOrder(World& world, ShardModel& model, Order& order, const std::string& forward,
                 const std::string& backward, int steps = 3) {
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE(step);
    Tape tape;
    const Recording on(tape);
    const Variable loss = LossOf(world, model, step);
    EXPECT_EQ(order.Take(), forward);
    tape.Backward(loss);
    EXPECT_EQ(order.Take(), backward);
    for (const Parameter& p : model.parameters()) p.MutableLocal();
  }
}

TEST(FsdpOrder, WithoutPrefetchEachUnitIsGatheredWhenItRuns) {
  const FullyShardOptions none{.prefetch = 0};
  const std::string forward = "Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2";
  const std::string blocks = "B2 U2 P2 R2 B1 U1 P1 R1 B0 U0 P0 R0";
  RunOrdered(3, {none, std::nullopt}, [&](World& world, ShardModel& model, Order& order) {
    ExpectOrder(world, model, order, forward, absl::StrCat("Br ", blocks, " Pr Rr"));
  });
  RunOrdered(3, {none, true}, [&](World& world, ShardModel& model, Order& order) {
    ExpectOrder(world, model, order, absl::StrCat(forward, " Rr"),
                absl::StrCat("Br Ur ", blocks, " Pr Rr"));
  });
  RunOrdered(3, {{.reshard_after_forward = false, .prefetch = 0}, false},
             [&](World& world, ShardModel& model, Order& order) {
               ExpectOrder(world, model, order, "Fr Ur F0 U0 F1 U1 F2 U2",
                           "Br B2 P2 R2 B1 P1 R1 B0 P0 R0 Pr Rr");
             });
}

TEST(FsdpOrder, OneAheadByTheOrderSeen) {
  RunOrdered(3, {}, [](World& world, ShardModel& model, Order& order) {
    {  // The first step teaches.
      Tape tape;
      const Recording on(tape);
      tape.Backward(LossOf(world, model, 9));
      order.Take();
      for (const Parameter& p : model.parameters()) p.MutableLocal();
    }
    ExpectOrder(world, model, order, "Fr Ur F0 U0 U1 R0 F1 U2 R1 F2 R2",
                "Br B2 U2 U1 P2 R2 B1 U0 P1 R1 B0 P0 R0 Pr Rr");
  });
}

// Each block's list: those after it in forward, before it in backward.
void SetLists(ShardModel& model, int ahead, bool backward) {
  const int count = static_cast<int>(model.blocks.size());
  for (int b = 0; b < count; ++b) {
    std::vector<Module*> next;
    for (int k = 1; k <= ahead; ++k) {
      const int other = backward ? b - k : b + k;
      if (0 <= other && other < count) next.push_back(&model.block(other));
    }
    if (backward) {
      SetBackwardPrefetch(model.block(b), next);
    } else {
      SetForwardPrefetch(model.block(b), next);
    }
  }
}

constexpr const char* kPlainForward = "Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2 F3 U3 R3";
constexpr const char* kPlainBackward = "Br B3 U3 P3 R3 B2 U2 P2 R2 B1 U1 P1 R1 B0 U0 P0 R0 Pr Rr";

TEST(FsdpOrder, ForwardListsOneAndTwoAhead) {
  const char* want[] = {"Fr Ur F0 U0 U1 R0 F1 U2 R1 F2 U3 R2 F3 R3",
                        "Fr Ur F0 U0 U1 U2 R0 F1 U3 R1 F2 R2 F3 R3"};
  for (const int ahead : {1, 2}) {
    RunOrdered(4, {{.prefetch = 0}, std::nullopt},
               [&](World& world, ShardModel& model, Order& order) {
                 SetLists(model, ahead, /*backward=*/false);
                 ExpectOrder(world, model, order, want[ahead - 1], kPlainBackward);
               });
  }
}

TEST(FsdpOrder, BackwardListsOneAndTwoAhead) {
  const char* want[] = {"Br B3 U3 U2 P3 R3 B2 U1 P2 R2 B1 U0 P1 R1 B0 P0 R0 Pr Rr",
                        "Br B3 U3 U2 U1 P3 R3 B2 U0 P2 R2 B1 P1 R1 B0 P0 R0 Pr Rr"};
  for (const int ahead : {1, 2}) {
    RunOrdered(4, {{.prefetch = 0}, std::nullopt},
               [&](World& world, ShardModel& model, Order& order) {
                 SetLists(model, ahead, /*backward=*/true);
                 ExpectOrder(world, model, order, kPlainForward, want[ahead - 1]);
               });
  }
}

// A list takes the place of the order seen, also in later steps, and an empty one gathers nothing.
TEST(FsdpOrder, AListReplacesTheOrderSeen) {
  RunOrdered(4, {}, [](World& world, ShardModel& model, Order& order) {
    SetLists(model, 2, /*backward=*/false);
    SetLists(model, 0, /*backward=*/true);
    ExpectOrder(world, model, order, "Fr Ur F0 U0 U1 U2 R0 F1 U3 R1 F2 R2 F3 R3", kPlainBackward);
  });
}

// Recomputes run under the backward's scope of their own unit: no gather and no reshard more.
TEST(FsdpOrder, CheckpointsInsideChangeNoEvent) {
  RunOrdered(
      4, {{.prefetch = 0}, std::nullopt},
      [](World& world, ShardModel& model, Order& order) {
        SetLists(model, 1, /*backward=*/false);
        SetLists(model, 2, /*backward=*/true);
        ExpectOrder(world, model, order, "Fr Ur F0 U0 U1 R0 F1 U2 R1 F2 U3 R2 F3 R3",
                    "Br B3 U3 U2 U1 P3 R3 B2 U0 P2 R2 B1 P1 R1 B0 P0 R0 Pr Rr");
      },
      /*checkpoint=*/true);
}

// A recompute around the unit gathers for the backward that follows it.
TEST(FsdpOrder, CheckpointsOutsideGatherAndReduceAsOften) {
  RunRanks(2, [](World& world) {
    ShardModel model;
    for (auto& block : model.blocks) {
      FullyShard(*block, world.mesh(), Sums({.prefetch = 0}));
      Checkpoint(*block);
    }
    FullyShard(model, world.mesh(), Sums({.prefetch = 0}));
    Initialize(model, world.device(), 1);
    Order order(model);
    ExpectOrder(world, model, order, "Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2",
                "Br C2 U2 B2 P2 R2 C1 U1 B1 P1 R1 C0 U0 B0 P0 R0 Pr Rr");
  });
}

TEST(FsdpOrder, TwoForwardsBeforeOneBackward) {
  const std::string blocks = "B2 U2 P2 R2 B1 U1 P1 R1 B0 U0 P0 R0";
  const std::string kept = "B2 P2 R2 B1 P1 R1 B0 P0 R0";
  struct Case {
    Kept kept;
    std::string first, second, backward;
  };
  const FullyShardOptions none{.prefetch = 0};
  const FullyShardOptions keeps{.reshard_after_forward = false, .prefetch = 0};
  // The first call whose backward runs, the later one, finds what the forwards left.
  const Case cases[] = {{{none, std::nullopt},
                         "Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2",
                         "Fr F0 U0 R0 F1 U1 R1 F2 U2 R2",
                         absl::StrCat("Br ", blocks, " Pr Rr Br Ur ", blocks, " Pr Rr")},
                        {{none, true},
                         "Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2 Rr",
                         "Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2 Rr",
                         absl::StrCat("Br Ur ", blocks, " Pr Rr Br Ur ", blocks, " Pr Rr")},
                        {{keeps, false},
                         "Fr Ur F0 U0 F1 U1 F2 U2",
                         "Fr F0 F1 F2",
                         absl::StrCat("Br ", kept, " Pr Rr Br Ur ", blocks, " Pr Rr")}};
  for (const Case& c : cases) {
    RunOrdered(3, c.kept, [&](World& world, ShardModel& model, Order& order) {
      for (int step = 0; step < 2; ++step) {
        Tape tape;
        const Recording on(tape);
        const Variable first = LossOf(world, model, step);
        EXPECT_EQ(order.Take(), c.first);
        const Variable second = LossOf(world, model, 10 + step);
        EXPECT_EQ(order.Take(), c.second);
        tape.Backward(Add(first, second));
        EXPECT_EQ(order.Take(), c.backward);
        for (const Parameter& p : model.parameters()) p.MutableLocal();
      }
    });
  }
}

// block0 under two heads, block1 and block2, whose losses have a backward each.
class TwoHeads : public Module {
 public:
  TwoHeads() {
    RegisterModule("block0", shared);
    RegisterModule("block1", first);
    RegisterModule("block2", second);
  }
  std::pair<Variable, Variable> operator()(const Variable& x) {
    return Call(
        *this,
        [](TwoHeads& self, const Variable& x) {
          const Variable y = self.shared(x);
          const Variable a = self.first(y);
          return std::pair(a, self.second(y));
        },
        x);
  }
  ShardBlock shared, first, second;
};

TEST(FsdpOrder, TwoBackwardsOfWhichEachLeavesAUnitOut) {
  // The plain gradients of both losses.
  const auto run = [](TwoHeads& model, const Device& device, int rank, Tape& tape,
                      const std::function<void(int)>& after) {
    const Recording on(tape);
    const auto [a, b] = model(InputOf(device, rank));
    const Variable first = Energy(a), second = Energy(b);
    after(0);
    tape.Backward(first, 1.0, {.retain = true});
    after(1);
    tape.Backward(second);
    after(2);
    tape.Reset();
  };
  TwoHeads plain;
  Initialize(plain, Device::Cpu(), 1);
  Tape plain_tape;
  for (int rank : {0, 1}) run(plain, Device::Cpu(), rank, plain_tape, [](int) {});
  const Whole want = GradientsOf(plain, nullptr);
  for (const int prefetch : {0, 1}) {
    RunRanks(2, [&](World& world) {
      TwoHeads model;
      for (ShardBlock* block : {&model.shared, &model.first, &model.second}) {
        FullyShard(*block, world.mesh(), Sums({.prefetch = prefetch}));
      }
      FullyShard(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Order order(model);
      Tape tape;
      const char* orders[] = {"Fr Ur F0 U0 R0 F1 U1 R1 F2 U2 R2", "Br B1 U1 P1 R1 B0 U0 P0 R0 Rr",
                              "Br Ur B2 U2 P2 R2 B0 U0 P0 R0 Rr"};
      run(model, world.device(), world.rank(), tape,
          [&](int phase) { EXPECT_EQ(order.Take(), orders[phase]) << phase; });
      ExpectClose(GradientsOf(model, &world.group()), want);
    });
  }
}

// What a list names and nobody runs is freed at the end, and the training is the plain one.
TEST(FsdpOrder, AListThatNamesTheWrongUnitsOnlyWastesGathers) {
  RunOrdered(3, {{.prefetch = 0}, std::nullopt}, [](World& world, ShardModel& model, Order& order) {
    SetForwardPrefetch(model.block(0), {&model.block(2)});
    SetBackwardPrefetch(model.block(1), {&model.block(2), &model.block(1)});
    ExpectOrder(world, model, order, "Fr Ur F0 U0 U2 R0 F1 U1 R1 F2 R2",
                "Br B2 U2 P2 R2 B1 U1 U2 P1 R1 B0 U0 P0 R0 Pr R2 Rr");
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded());
  });
  const Recipe<ShardModel> recipe{
      .shard =
          [](ShardModel& model, const Mesh& mesh) {
            ShardAll(model, mesh, Sums());
            SetForwardPrefetch(model, {&model.block(2), &model.block(1)});
            SetBackwardPrefetch(model.block(2), {&model.block(0)});
            SetBackwardPrefetch(model.block(0), {&model.block(1), &model.block(2)});
          },
      .loss =
          [](ShardModel& model, const Device& device, int rank, int step) {
            return Energy(model(InputOf(device, rank, static_cast<uint64_t>(step)), {0, 1, 2}));
          }};
  ExpectTrains(2, recipe, Delayed("", absl::Milliseconds(1)));
}

// Lists 1 and 2 ahead in both directions train as the plain model.
TEST(FsdpOrder, ListsTrainAsThePlainModel) {
  for (const int ahead : {1, 2}) {
    const Recipe<ShardModel> recipe{
        .make = [] { return std::make_unique<ShardModel>(5); },
        .shard =
            [=](ShardModel& model, const Mesh& mesh) {
              ShardAll(model, mesh, Sums());
              SetLists(model, ahead, /*backward=*/false);
              SetLists(model, ahead, /*backward=*/true);
            },
        .loss =
            [](ShardModel& model, const Device& device, int rank, int step) {
              return Energy(model(InputOf(device, rank, static_cast<uint64_t>(step)), UpTo(5)));
            }};
    ExpectTrains(2, recipe, Delayed("", absl::Milliseconds(1)));
    ExpectTrains(3, recipe);
  }
}

TEST(FsdpOrder, AListOfWhatIsNoUnitIsRefused) {
  RunOrdered(2, {}, [](World&, ShardModel& model, Order&) {
    for (const auto& set : {SetForwardPrefetch, SetBackwardPrefetch}) {
      EXPECT_TRUE(Contains(ErrorOf([&] {
                             set(model.block(0), {&model.block(1), &model.head});
                           }),
                           "head"));
      EXPECT_TRUE(Contains(ErrorOf([&] { set(model.head, {&model.block(1)}); }), "head"));
    }
  });
}

}  // namespace
}  // namespace sherd::testing
