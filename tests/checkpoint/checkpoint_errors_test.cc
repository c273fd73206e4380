// What goes wrong in a region is an error that names it, and leaves the next step right.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "tests/checkpoint/model.h"

namespace sherd::testing {
namespace {

class CheckpointErrorsTest : public ::testing::Test {
 protected:
  Variable Leaf(const std::vector<double>& values) {
    return Variable::Leaf(TensorOf<double>(device_, values, {static_cast<int64_t>(values.size())}));
  }
  Device device_ = Device::Cpu();
  Tape tape_;
};

void ExpectError(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
}

// Leaks a variable of its region.
class Leaking : public Module {
 public:
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Leaking& self, const Variable& x) {
          self.leaked = Scale(x, 3.0);
          return Scale(x, 2.0);
        },
        x);
  }
  Variable leaked;
};

struct Parent : Module {
  Parent() { RegisterModule("leaking", child); }
  Leaking child;
};

TEST_F(CheckpointErrorsTest, VariableThatWasNotReturnedNamesTheRegion) {
  Parent parent;
  Checkpoint(parent.child);
  const Recording on(tape_);
  const Variable y = parent.child(Leaf({1, 2}));
  const Variable leaked = parent.child.leaked;
  ExpectError(ErrorOf([&] { Add(y, leaked); }),
              {"[add]", "operand 1", "the checkpointed call of leaking", "return it", "Detach()"});
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(leaked)); }), {"the checkpointed call of leaking"});
  EXPECT_EQ(ErrorOf([&] { Add(y, leaked.Detach()); }), "no error");
  parent.child.leaked = Variable();
}

TEST_F(CheckpointErrorsTest, VariableLeakedByTheRecomputeIsRefusedToo) {
  Parent parent;
  Checkpoint(parent.child);
  const Recording on(tape_);
  tape_.Backward(Sum(parent.child(Leaf({1, 2}))));
  ExpectError(ErrorOf([&] { Scale(parent.child.leaked, 1.0); }), {"operand 0", "belongs to"});
  parent.child.leaked = Variable();
}

TEST_F(CheckpointErrorsTest, RecomputeWithMoreOpsIsRefusedNamingTheFirst) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  auto runs = std::make_shared<int>(0);
  const Variable y = Checkpoint(
      [runs](const Variable& in) {
        Variable out = in;
        for (int i = 0; i < 3 + 2 * *runs; ++i) out = Scale(out, 2.0);
        ++*runs;
        return out;
      },
      x);
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(y)); }),
              {"[scale]", "recompute differs in a checkpointed function",
               "the first run made 3 ops, this one makes another, 'scale'"});
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(CheckpointErrorsTest, RecomputeWithFewerOpsIsRefusedWithBothCounts) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  auto runs = std::make_shared<int>(0);
  const Variable y = Checkpoint(
      [runs](const Variable& in) {
        Variable out = in;
        for (int i = 0; i < 3 - *runs; ++i) out = Scale(out, 2.0);
        ++*runs;
        return out;
      },
      x);
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(y)); }),
              {"[backward of checkpoint]", "recompute differs", "made 3 ops and 1 outputs",
               "this one 2 and 1"});
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(CheckpointErrorsTest, RecomputeWithAnotherOpIsRefusedWithBothNames) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  auto runs = std::make_shared<int>(0);
  const Variable y = Checkpoint(
      [runs](const Variable& in) { return (*runs)++ == 0 ? Silu(in) : Scale(in, 2.0); }, x);
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(y)); }),
              {"recompute differs", "op 0 of the first run was 'silu', now it is 'scale'"});
}

TEST_F(CheckpointErrorsTest, RecomputeWithOtherShapesIsRefusedWithBoth) {
  const Variable x = Leaf({1, 2, 3});
  const Recording on(tape_);
  auto runs = std::make_shared<int>(0);
  const Variable y =
      Checkpoint([runs](const Variable& in) { return Slice(in, 0, (*runs)++, 3); }, x);
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(y)); }),
              {"recompute differs", "op 0 made f64 [3]", "now f64 [2]"});
}

TEST_F(CheckpointErrorsTest, RecomputeWithOtherOutputsIsRefused) {
  const Variable x = Leaf({1, 2, 3});
  const Recording on(tape_);
  auto runs = std::make_shared<int>(0);
  const std::vector<Variable> ys = Checkpoint(
      [runs](const Variable& in) {
        const Variable y = Scale(in, 2.0);
        return (*runs)++ == 0 ? std::vector<Variable>{y} : std::vector<Variable>{in};
      },
      x);
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(ys[0])); }),
              {"recompute differs", "1 outputs, this one 1 and 0"});
}

TEST_F(CheckpointErrorsTest, ChangedParameterIsFoundBeforeAnythingIsRecomputed) {
  for (bool frozen : {false, true}) {
    Stack model(DType::kF64, 1, 1);
    Initialize(model, device_, 3);
    model.block(0).up().set_requires_grad(!frozen);
    Checkpoint(model.block(0));
    const Recording on(tape_, {.samples = {0, 1}});
    const Variable y = Sum(model(TensorOf<int64_t>(device_, {3, 1}, {2})));
    EXPECT_EQ(model.block(0).runs, 1);
    model.block(0).up().MutableLocal();
    ExpectError(ErrorOf([&] { tape_.Backward(y); }), {"'block0.up.weight' changed", "in block0"});
    EXPECT_EQ(model.block(0).runs, 1);
    tape_.Reset();
  }
}

TEST_F(CheckpointErrorsTest, AParameterFrozenSinceIsFoundBeforeAnythingIsRecomputed) {
  for (bool wanted : {true, false}) {
    Stack model(DType::kF64, 1, 1);
    Initialize(model, device_, 3);
    const Parameter up = model.block(0).up();
    up.set_requires_grad(wanted);
    Checkpoint(model.block(0));
    const Recording on(tape_, {.samples = {0, 1}});
    const Variable y = Sum(model(TensorOf<int64_t>(device_, {3, 1}, {2})));
    up.set_requires_grad(!wanted);
    ExpectError(ErrorOf([&] { tape_.Backward(y, 1.0, {.retain = true}); }),
                {"'block0.up.weight' was", wanted ? " frozen between" : " unfrozen between"});
    EXPECT_EQ(model.block(0).runs, 1);
    up.set_requires_grad(wanted);
    tape_.Backward(y);
    EXPECT_EQ(model.block(0).runs, 2);
    EXPECT_EQ(up.local_grad().defined(), wanted);
    tape_.Reset();
  }
}

TEST_F(CheckpointErrorsTest, FailedRecomputeLeavesNothingAndTheNextStepIsRight) {
  const Variable x = Leaf({1, 2});
  const auto held = [&] { return device_.allocator().stats().total.current_bytes; };
  const int64_t before = held();
  {
    const Recording on(tape_);
    auto runs = std::make_shared<int>(0);
    const Variable y = Checkpoint(
        [runs](const Variable& in) {
          if ((*runs)++ > 0) ThrowInvalidArgument("not again");
          return Silu(in);
        },
        x);
    ExpectError(ErrorOf([&] { tape_.Backward(Sum(Add(y, x))); }), {"not again"});
  }
  tape_.Reset();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(held(), before);
  const Recording on(tape_);
  tape_.Backward(Sum(Checkpoint([](const Variable& in) { return Scale(in, 5.0); }, x)));
  EXPECT_EQ(x.grad().ToHost<double>(), (std::vector<double>{5, 5}));
}

TEST_F(CheckpointErrorsTest, WrapperThatFailsAfterTheBodyLeavesNoResult) {
  struct Failing final : Interceptor {
    void Around(const CallContext& call) override {
      call.Proceed();
      if (++calls == 2) ThrowInvalidArgument("afterwards");
    }
    int calls = 0;
  };
  Parent parent;
  parent.child.AddInterceptor(std::make_shared<Failing>());
  Checkpoint(parent.child);
  const Variable x = Leaf({1, 2});
  const auto held = [&] {
    return device_.allocator().stats()[MemoryCategory::kActivation].current_bytes;
  };
  const int64_t before = held();
  const Recording on(tape_);
  {
    const Variable y = Sum(parent.child(x));
    parent.child.leaked = Variable();
    ExpectError(ErrorOf([&] { tape_.Backward(y); }), {"afterwards"});
  }
  parent.child.leaked = Variable();
  EXPECT_EQ(held(), before) << "the record still holds a result";
}

TEST_F(CheckpointErrorsTest, ErrorInTheFirstPassLeavesTheTapeUsable) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  ExpectError(
      ErrorOf([&] { Checkpoint([](const Variable& in) { return Add(in, Variable()); }, x); }),
      {"[add]", "undefined"});
  tape_.Backward(Sum(Scale(x, 2.0)));
  EXPECT_EQ(x.grad().ToHost<double>(), (std::vector<double>{2, 2}));
}

}  // namespace
}  // namespace sherd::testing
