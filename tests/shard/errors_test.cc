// Misuse of sharded models is an error that names parameter, unit and phase; a failure is a failure
// for all.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

void ExpectError(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
}

TEST(ShardErrors, ReadOfAShardedParameterNamesItItsUnitAndThePhase) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      ShardModel model(1);
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      const Tensor whole = model.block(0).up.weight().variable().value();
      ExpectError(ErrorOf([&] { whole.data<double>(); }),
                  {"'block0.up.weight'", "unit 'block0'", "sharded", "phase: not called yet"});
      Tape tape;
      const Recording on(tape);
      const Variable loss = Energy(model(InputOf(world.device(), world.rank()), {0}));
      ExpectError(ErrorOf([&] { whole.data<double>(); }),
                  {"'block0.up.weight'", "phase: after a forward"});
      ExpectError(ErrorOf([&] { Scale(Variable(whole), 2.0); }),
                  {"[scale]", "'block0.up.weight'", "after a forward"});
      tape.Backward(loss);
      ExpectError(ErrorOf([&] { whole.data<double>(); }), {"phase: after a backward"});
    });
  }
}

TEST(ShardErrors, RecordedReadOutsideACallIsRefusedAlsoWhileGathered) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      ShardModel model(1);
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      model(InputOf(world.device(), world.rank()), {0});
      ASSERT_TRUE(UnitOf(model)->unsharded());
      ExpectError(
          ErrorOf([&] { Energy(model.head.weight()); }),
          {"[mul]", "'head.weight'", "unit 'the root module'", "outside a call", "UnitScope"});
      ExpectError(ErrorOf([&] { Energy(model.block(0).up.weight()); }),
                  {"'block0.up.weight'", "unit 'block0'"});
      const UnitScope scope(model);
      EXPECT_EQ(ErrorOf([&] { Energy(model.head.weight()); }), "no error");
    });
  }
}

TEST(ShardErrors, ReadAfterAChangeInTheSameCallIsRefused) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      ShardModel model(1);
      ShardAll(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      const UnitScope scope(model);
      model.head.weight().MutableLocal();
      ExpectError(ErrorOf([&] { Energy(model.head.weight()); }),
                  {"'head.weight'", "changed in the same call"});
    });
  }
}

TEST(ShardErrors, ParameterChangedBetweenForwardAndBackward) {
  for (int ranks : {1, 2}) {
    const std::string run = ErrorOf([&] {
      RunRanks(ranks, [](World& world) {
        ShardModel model(1);
        ShardAll(model, world.mesh(), Sums());
        Initialize(model, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        const Variable loss = Energy(model(InputOf(world.device(), world.rank()), {0}));
        model.block(0).down.weight().MutableLocal();
        ExpectError(ErrorOf([&] { tape.Backward(loss); }),
                    {"'block0.down.weight' changed between forward and backward"});
      });
    });
    // The failure of a step ends the world of several ranks.
    EXPECT_TRUE(Contains(run, ranks == 1 ? "no error" : "'block0.down.weight' changed"));
  }
}

TEST(ShardErrors, FullyShardRefuses) {
  RunRanks(1, [](World& world) {
    struct Tied : Module {
      Tied() {
        RegisterModule("a", a);
        RegisterModule("b", b);
        RegisterTied(a.weight());
      }
      LinearLayer a{2, 2, Initializer::Constant(1.0), DType::kF64};
      LinearLayer b{2, 2, Initializer::Constant(1.0), DType::kF64};
    };
    struct User : Module {
      explicit User(const Parameter& shared) { RegisterTied(shared); }
    };
    struct Root : Module {
      Root() {
        RegisterModule("tied", tied);
        RegisterModule("user", user);
      }
      Tied tied;
      User user{tied.a.weight()};
    } root;
    User stranger{root.tied.b.weight()};
    FullyShard(root.tied, world.mesh(), Sums());
    ExpectError(ErrorOf([&] { FullyShard(root.tied, world.mesh(), Sums()); }),
                {"[FullyShard]", "a unit already", "(in tied)"});
    ExpectError(ErrorOf([&] { FullyShard(stranger, world.mesh(), Sums()); }),
                {"[FullyShard]", "'tied.b.weight'", "shared with tied", "(in the root module)"});
    EXPECT_EQ(ErrorOf([&] { FullyShard(root.user, world.mesh(), Sums()); }), "no error");
    EXPECT_EQ(ErrorOf([&] { FullyShard(root, world.mesh(), Sums()); }), "no error");
    EXPECT_EQ(UnitOf(root.tied)->parameters(), 1);
    EXPECT_EQ(UnitOf(root)->parameters(), 1) << "the tied weight is the common ancestor's";
    LinearLayer first(2, 2, Initializer::Constant(1.0)), second(2, 2, Initializer::Constant(1.0));
    ExpectError(ErrorOf([&] {
                  FullyShard({&first, &first}, world.mesh(), Sums());
                }),
                {"'the root module' is given beside"});
    ExpectError(ErrorOf([&] { FullyShard({}, world.mesh(), Sums()); }), {"an empty list"});
    ExpectError(ErrorOf([&] {
                  FullyShard({&first, nullptr}, world.mesh(), Sums());
                }),
                {"null module"});
    FullyShard({&first, &second}, world.mesh(), Sums());
    ExpectError(ErrorOf([&] { FullyShard(second, world.mesh(), Sums()); }), {"a unit already"});
    LinearLayer third(2, 2, Initializer::Constant(1.0));
    ExpectError(ErrorOf([&] { FullyShard(third, world.mesh(), Sums({.park = 3})); }),
                {"leave the parameters on 3 ranks", "the shard axis has 1"});
    ExpectError(
        ErrorOf([&] { FullyShard(third, world.mesh(), Sums({.park = 2, .stage = kZero2})); }),
        {"leave the parameters on 2 ranks", "does not cut them"});
    const Stage inverted{{Placement::kShard, Placement::kReplicate, Placement::kShard}, {}};
    ExpectError(ErrorOf([&] { FullyShard(third, world.mesh(), Sums({.stage = inverted})); }),
                {"the stage's shard axis", "parameters without their gradients"});
    ExpectError(ErrorOf([&] {
                  FullyShard(third, world.mesh(), Sums({.precision = {.parameters = DType::kI32}}));
                }),
                {"precision.parameters is i32", "no floating dtype"});

    LinearLayer empty(0, 2, Initializer::Constant(1.0));
    ExpectError(ErrorOf([&] { FullyShard(empty, world.mesh(), Sums()); }),
                {"'weight' has no elements"});
    LinearLayer elsewhere(2, 2, Initializer::Constant(1.0));
    Initialize(elsewhere, Device::Cpu({.index = 3}), 1);
    ExpectError(ErrorOf([&] { FullyShard(elsewhere, world.mesh(), Sums()); }),
                {"'weight' is on cpu:3", "computes on cpu:0"});
    ExpectError(ErrorOf([&] { FullyShard(elsewhere, Mesh(), Sums()); }), {"undefined mesh"});
    ExpectError(ErrorOf([&] { UnitScope scope(elsewhere); }), {"[UnitScope]", "not a unit"});
  });
}

// What goes wrong on rank 0, in which phase of the step.
enum class Phase { kForward, kBackward, kRecompute, kScope };

class FailingBackwardOp final : public Op {
 public:
  explicit FailingBackwardOp(bool fails) : fails_(fails) {}
  std::string_view name() const override { return "failing"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override { kernels::Copy(f.inputs[0], f.outputs[0]); }
  void Backward(OpBackward& b) const override {
    if (fails_) ThrowInvalidArgument("rank 0 broke in backward");
    b.Pass(0, b.grad());
  }

 private:
  bool fails_;
};

// One block and something that breaks on rank 0.
class Breaking : public Module {
 public:
  Breaking(Phase phase, bool breaks) : phase(phase), breaks(breaks) {
    RegisterModule("block", block);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Breaking& self, const Variable& x) {
          ++self.runs;
          Variable y = self.block(x);
          if (self.breaks && self.phase == Phase::kForward)
            ThrowInvalidArgument("rank 0 broke in forward");
          if (self.breaks && self.phase == Phase::kRecompute && self.runs == 2)
            ThrowInvalidArgument("rank 0 broke in recompute");
          y = ApplyOne(FailingBackwardOp(self.breaks && self.phase == Phase::kBackward), {y},
                       CallSite::Here());
          return self.block(y);
        },
        x);
  }
  Phase phase;
  bool breaks;
  int runs = 0;
  ShardBlock block;
};

Variable Loss(Breaking& model, const World& world) {
  const Variable loss = Energy(model(InputOf(world.device(), world.rank())));
  if (model.phase != Phase::kScope) return loss;
  const UnitScope scope(model.block);
  if (model.breaks) ThrowInvalidArgument("rank 0 broke in a scope");
  return Add(loss, Energy(model.block.up.weight()));
}

void Wrap(Breaking& model, const Mesh& mesh) {
  FullyShard(model.block, mesh, Sums());
  if (model.phase == Phase::kRecompute) Checkpoint(model);
  FullyShard(model, mesh, Sums());
}

class FailureTest : public ::testing::TestWithParam<Phase> {};

TEST_P(FailureTest, OtherRanksThrowWithinSecondsWithTheTextAndLaterCallsAreRefused) {
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::vector<std::string> errors(2);
  // The world has failed, so it cannot be finished: this is the error that ends the run.
  ExpectError(
      ErrorOf([&] {
        RunRanks(2, [&](World& world) {
          Breaking model(GetParam(), world.rank() == 0);
          Wrap(model, world.mesh());
          Initialize(model, world.device(), 1);
          Tape tape;
          const std::string text = ErrorOf([&] {
            const Recording on(tape);
            for (int step = 0; step < 3; ++step) {
              tape.Backward(Loss(model, world));
              tape.Reset();
            }
          });
          {
            const std::lock_guard<std::mutex> lock(mutex);
            errors[static_cast<size_t>(world.rank())] = text;
          }
          tape.Reset();
          ExpectError(ErrorOf([&] { model(InputOf(world.device(), world.rank())); }),
                      {"an earlier step failed", "new World"});
          ExpectError(ErrorOf([&] { Recover(model); }), {"an earlier step failed", "new World"});
        });
      }),
      {GetParam() == Phase::kScope ? "UnitScope of 'block'" : "rank 0 broke in"});
  EXPECT_TRUE(Contains(errors[0], "rank 0 broke in"));
  EXPECT_TRUE(Contains(errors[1],
                       GetParam() == Phase::kScope ? "UnitScope of 'block'" : "rank 0 broke in"));
  EXPECT_TRUE(Contains(errors[1], "rank 0"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

INSTANTIATE_TEST_SUITE_P(Phases, FailureTest,
                         ::testing::Values(Phase::kForward, Phase::kBackward, Phase::kRecompute,
                                           Phase::kScope));

TEST(Recovery, NextStepOfOneRankIsRightAfterAnyFailure) {
  for (Phase phase : {Phase::kForward, Phase::kBackward, Phase::kRecompute, Phase::kScope}) {
    SCOPED_TRACE(static_cast<int>(phase));
    RunRanks(1, [&](World& world) {
      const auto run = [&](Breaking& model, Tape& tape) {
        const Recording on(tape);
        tape.Backward(Loss(model, world));
        tape.Reset();
      };
      Whole want;
      {
        Breaking model(phase, false);
        Wrap(model, world.mesh());
        Initialize(model, world.device(), 1);
        Tape tape;
        run(model, tape);
        want = GradientsOf(model, nullptr);
      }
      Breaking model(phase, true);
      Wrap(model, world.mesh());
      Initialize(model, world.device(), 1);
      Tape tape;
      ExpectError(ErrorOf([&] { run(model, tape); }), {"broke"});
      model.breaks = false;
      ExpectError(ErrorOf([&] { run(model, tape); }),
                  {"an earlier step failed",
                   phase == Phase::kScope ? "UnitScope of 'block'" : "broke", "Recover()"});
      Recover(model);
      tape.Reset();
      for (const Parameter& parameter : model.parameters())
        EXPECT_FALSE(parameter.local_grad().defined()) << parameter.name();
      for (const Unit* unit : UnitsOf(model))
        EXPECT_FALSE(unit->unsharded() || unit->open()) << unit->name();
      run(model, tape);
      ExpectClose(GradientsOf(model, nullptr), want);
    });
  }
}

TEST(Recovery, FailedEvaluationFailsTheModelToo) {
  RunRanks(1, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    const Variable wrong = NormalTensor(world.device(), DType::kF64, {2, 4}, 1);
    EXPECT_NE(ErrorOf([&] { model(wrong, {0}); }), "no error");
    for (const Unit* unit : UnitsOf(model))
      EXPECT_FALSE(unit->unsharded() || unit->open()) << unit->name();
    ExpectError(ErrorOf([&] { model(InputOf(world.device(), 0), {0}); }), {"Recover()"});
    Recover(model);
    EXPECT_EQ(ErrorOf([&] { model(InputOf(world.device(), 0), {0}); }), "no error");
  });
}

}  // namespace
}  // namespace sherd::testing
