// What others got wrong where hooks, checkpoints and shards meet.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/module_hooks.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

enum class Order { kOff, kInside, kOutside, kTwice };
constexpr std::array<Order, 4> kOrders = {Order::kOff, Order::kInside, Order::kOutside,
                                          Order::kTwice};

void Wrap(ShardModel& model, const Mesh& mesh, Order order, bool early_stop) {
  const CheckpointOptions options{.early_stop = early_stop};
  for (auto& block : model.blocks) {
    if (order == Order::kInside || order == Order::kTwice) Checkpoint(*block, options);
    FullyShard(*block, mesh, Sums());
    if (order == Order::kOutside || order == Order::kTwice) Checkpoint(*block, options);
  }
  FullyShard(model, mesh, Sums());
}

struct Counts {
  int before_forward = 0, after_forward = 0, before_backward = 0, after_backward = 0;
};

ModuleHooks CountingHooks(Counts& counts) {
  return {.before_forward = [&](const Module&) { ++counts.before_forward; },
          .after_forward = [&](const Module&) { ++counts.after_forward; },
          .before_backward = [&](const Module&) { ++counts.before_backward; },
          .after_backward = [&](const Module&) { ++counts.after_backward; }};
}

TEST(Hooks, OfAModuleRunOncePerCallWhateverWrapsIt) {
  for (int ranks : {1, 2}) {
    for (Order order : kOrders) {
      for (int calls : {1, 2, 3}) {
        SCOPED_TRACE(absl::StrCat("order ", static_cast<int>(order), " calls ", calls));
        RunRanks(ranks, [&](World& world) {
          ShardModel model;
          std::array<Counts, 2> inner, outer;
          for (int b : {0, 1}) AddHooks(model.block(b), CountingHooks(inner[b]));
          Wrap(model, world.mesh(), order, calls != 2);
          for (int b : {0, 1}) AddHooks(model.block(b), CountingHooks(outer[b]));
          Initialize(model, world.device(), 1);
          Tape tape;
          const Recording on(tape);
          Variable loss;
          for (int k = 0; k < calls; ++k) {
            const Variable y = model(InputOf(world.device(), world.rank(), k), {0, 1, 0});
            loss = loss.defined() ? Add(loss, Energy(y)) : Energy(y);
          }
          tape.Backward(loss);
          for (int b : {0, 1}) {
            const int want = b == 0 ? 2 * calls : calls;
            for (const Counts& got : {inner[b], outer[b]}) {
              EXPECT_EQ(got.before_forward, want);
              EXPECT_EQ(got.after_forward, want);
              EXPECT_EQ(got.before_backward, want);
              EXPECT_EQ(got.after_backward, want);
            }
          }
        });
      }
    }
  }
}

TEST(Hooks, OfAParameterRunOncePerBackwardAndSeeTheReducedGradient) {
  for (int ranks : {1, 2}) {
    for (Order order : kOrders) {
      SCOPED_TRACE(static_cast<int>(order));
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        Wrap(model, world.mesh(), order, true);
        Initialize(model, world.device(), 1);
        std::map<std::string, int> runs;
        std::map<std::string, std::vector<double>> seen;
        for (const Parameter& parameter : model.parameters()) {
          parameter.OnGradient([&](const Parameter& p) {
            ++runs[p.name()];
            seen[p.name()] = p.local_grad().ToHost<double>();
          });
        }
        Tape tape;
        const Recording on(tape);
        const Variable x = InputOf(world.device(), world.rank());
        tape.Backward(Add(Energy(model(x, {0, 1, 0})), Energy(model(x, {0}))));
        for (const Parameter& parameter : model.parameters()) {
          const bool used = parameter.name().find("block2") == std::string::npos;
          EXPECT_EQ(runs[parameter.name()], used ? 1 : 0) << parameter.name();
          if (used) {
            EXPECT_EQ(seen[parameter.name()], parameter.local_grad().ToHost<double>())
                << parameter.name();
          }
        }
      });
    }
  }
}

TEST(Hooks, WhatABackwardHookThrowsReachesTheCallerAndTheNextStepIsRight) {
  for (Order order : kOrders) {
    SCOPED_TRACE(static_cast<int>(order));
    RunRanks(1, [&](World& world) {
      const auto step = [&](ShardModel& model, Tape& tape) {
        const Recording on(tape);
        tape.Backward(Energy(model(InputOf(world.device(), 0), {0, 1, 0})));
        tape.Reset();
      };
      Whole want;
      {
        ShardModel model;
        Wrap(model, world.mesh(), order, true);
        Initialize(model, world.device(), 1);
        Tape tape;
        step(model, tape);
        want = GradientsOf(model, nullptr);
      }
      ShardModel model;
      bool breaks = true;
      AddHooks(model.block(0), {.after_backward = [&](const Module&) {
                 if (breaks) throw std::runtime_error("the counter overflowed");
               }});
      Wrap(model, world.mesh(), order, true);
      Initialize(model, world.device(), 1);
      Tape tape;
      const std::string text = ErrorOf([&] { step(model, tape); });
      EXPECT_TRUE(Contains(text, "the counter overflowed"));
      EXPECT_TRUE(Contains(text, "block0"));
      EXPECT_TRUE(Contains(ErrorOf([&] { step(model, tape); }), "an earlier step failed"));
      breaks = false;
      Recover(model);
      tape.Reset();
      step(model, tape);
      ExpectClose(GradientsOf(model, nullptr), want);
      for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->unsharded()) << unit->name();
    });
  }
}

// A block that keeps a value of its own for a loss that is not built from the model's output.
class Caching : public Module {
 public:
  Caching() : inner(ShardBlock::kChannels, 4, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("inner", inner);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Caching& self, const Variable& x) {
          self.kept = self.inner(x);
          return Sum(Silu(self.kept));
        },
        x);
  }
  LinearLayer inner;
  Variable kept;
};

TEST(Loss, OfACachedIntermediateGivesRightGradients) {
  for (int ranks : {1, 2, 3}) {
    std::vector<double> want;
    const auto input = [](World& world, int rank) { return InputOf(world.device(), rank); };
    RunRanks(1, [&](World& world) {
      Caching model;
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      for (int r = 0; r < ranks; ++r) {
        model(input(world, r));
        tape.Backward(Energy(model.kept));
      }
      want = model.inner.weight().local_grad().ToHost<double>();
    });
    for (bool reshard : {true, false}) {
      RunRanks(ranks, [&](World& world) {
        Caching model;
        FullyShard(model, world.mesh(), Sums({.reshard_after_forward = reshard}));
        Initialize(model, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        model(input(world, world.rank()));
        tape.Backward(Energy(model.kept));
        ExpectClose(GradientsOf(model, &world.group()), {{"inner.weight", want}});
        EXPECT_FALSE(UnitOf(model)->unsharded());
        model.kept = Variable();
      });
    }
  }
}

// A block whose weight another block may share.
class TiedBlock : public Module {
 public:
  explicit TiedBlock(const Parameter* shared = nullptr) {
    weight = shared == nullptr
                 ? RegisterParameter("weight", {ShardBlock::kChannels, ShardBlock::kChannels},
                                     Initializer::Normal(0.4), DType::kF64)
                 : *shared;
    if (shared != nullptr) RegisterTied(weight);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](TiedBlock& self, const Variable& x) { return Silu(Linear(x, self.weight)); }, x);
  }
  Parameter weight;
};

class TiedModel : public Module {
 public:
  TiedModel() : second(&first.weight) {
    RegisterModule("first", first);
    RegisterModule("second", second);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](TiedModel& self, const Variable& x) { return self.second(self.first(x)); }, x);
  }
  TiedBlock first;
  TiedBlock second;
};

TEST(Tied, AWeightOfTwoBlocksGetsBothContributionsOfEveryCall) {
  for (int ranks : {1, 2, 3}) {
    std::vector<double> want(ShardBlock::kChannels * ShardBlock::kChannels, 0.0);
    RunRanks(1, [&](World& world) {
      // Without tying: two weights of equal values, whose gradients are added by hand.
      TiedBlock first, second;
      Initialize(first, world.device(), 1);
      Initialize(second, world.device(), 1);
      TiedModel model;
      Initialize(model, world.device(), 1);
      for (TiedBlock* block : {&first, &second}) {
        kernels::Copy(model.first.weight.local(), block->weight.MutableLocal());
      }
      Tape tape;
      const Recording on(tape);
      for (int r = 0; r < ranks; ++r) {
        for (uint64_t k : {0, 1}) {
          tape.Backward(Energy(second(first(InputOf(world.device(), r, k)))));
        }
      }
      for (TiedBlock* block : {&first, &second}) {
        const std::vector<double> grad = block->weight.local_grad().ToHost<double>();
        for (size_t i = 0; i < want.size(); ++i) want[i] += grad[i];
      }
    });
    for (Order order : kOrders) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, order ", static_cast<int>(order)));
      RunRanks(ranks, [&](World& world) {
        TiedModel model;
        if (order == Order::kInside || order == Order::kTwice) {
          Checkpoint(model.first);
          Checkpoint(model.second);
        }
        FullyShard(model, world.mesh(), Sums({.reshard_after_forward = true}));
        if (order == Order::kOutside || order == Order::kTwice) Checkpoint(model);
        Initialize(model, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        const auto loss = [&](uint64_t k) {
          return Energy(model(InputOf(world.device(), world.rank(), k)));
        };
        tape.Backward(Add(loss(0), loss(1)));
        ExpectClose(GradientsOf(model, &world.group()), {{"first.weight", want}});
      });
    }
  }
}

TEST(Retained, RecordsReduceOncePerBackward) {
  for (int ranks : {1, 2}) {
    for (Order order : kOrders) {
      SCOPED_TRACE(static_cast<int>(order));
      RunRanks(ranks, [&](World& world) {
        ShardModel model(1);
        Wrap(model, world.mesh(), order, true);
        Initialize(model, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        const Variable loss = Energy(model(InputOf(world.device(), world.rank()), {0, 0}));
        tape.Backward(loss, 1.0, {.retain = true});
        const Whole once = GradientsOf(model, &world.group());
        tape.Backward(loss);
        Whole twice = GradientsOf(model, &world.group());
        for (auto& [name, values] : twice) {
          for (double& value : values) value /= 2.0;
        }
        ExpectClose(twice, once);
        EXPECT_EQ(UnitOf(model.block(0))->reductions(), 2 * 2);
      });
    }
  }
}

}  // namespace
}  // namespace sherd::testing
