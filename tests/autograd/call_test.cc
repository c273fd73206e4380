// The call seam: wrappers, the visitor, copied arguments, and the brackets that calls leave on a
// tape.

#include "sherd/autograd/call.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "tests/support/tensors.h"

namespace elsewhere {

struct Inner {
  sherd::Variable x;
};
void VisitVariables(Inner& inner, const sherd::VariableVisitor& visit) { visit(inner.x); }

struct Batch {
  sherd::Variable x;
  std::vector<Inner> more;
  int64_t items = 0;
};
void VisitVariables(Batch& batch, const sherd::VariableVisitor& visit) {
  visit(batch.x);
  VisitVariables(batch.more, visit);
}

}  // namespace elsewhere

namespace sherd::testing {
namespace {

using Words = std::vector<std::string>;

class CallTest : public ::testing::Test {
 protected:
  Variable Value(double value) { return TensorOf<double>(device_, {value}, {1}); }
  Device device_ = Device::Cpu();
  Words log_;
};

class Naming final : public Interceptor {
 public:
  Naming(std::string name, Words& log) : name_(std::move(name)), log_(log) {}
  void Around(const CallContext& call) override {
    log_.push_back(name_ + " in");
    call.Proceed();
    log_.push_back(name_ + " out");
  }

 private:
  std::string name_;
  Words& log_;
};

// Keeps the call, to run its body later.
class Keeping final : public Interceptor {
 public:
  void Around(const CallContext& call) override {
    kept.push_back(call);
    call.Proceed();
  }
  std::vector<CallContext> kept;
};

class Twice : public Module {
 public:
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Twice& self, const Variable& x) {
          ++self.runs;
          return Scale(x, 2.0);
        },
        x);
  }
  int runs = 0;
};

TEST_F(CallTest, WrappersRunOutermostFirst) {
  Twice module;
  module.AddInterceptor(std::make_shared<Naming>("first", log_));
  module.AddInterceptor(std::make_shared<Naming>("second", log_));
  module(Value(1));
  EXPECT_EQ(log_, (Words{"second in", "first in", "first out", "second out"}));
  EXPECT_EQ(module.runs, 1);
}

TEST_F(CallTest, KeptCallRunsAgainWithCopiedArguments) {
  Twice module;
  auto keeping = std::make_shared<Keeping>();
  module.AddInterceptor(std::make_shared<Naming>("outer", log_));
  auto inner = std::make_shared<Naming>("inner", log_);
  Twice other;
  other.AddInterceptor(inner);
  other.AddInterceptor(keeping);
  {
    auto x = std::make_unique<Variable>(Value(3));
    other(*x);
    x.reset();
  }
  log_.clear();
  CallContext& call = keeping->kept.at(0);
  call.Proceed();
  EXPECT_EQ(log_, (Words{"inner in", "inner out"}))
      << "a kept call runs what is further in, and nothing else";
  EXPECT_EQ(other.runs, 2);
  std::vector<double> seen;
  call.record().VisitResult([&](Variable& v) { seen.push_back(v.value().data<double>()[0]); });
  EXPECT_EQ(seen, std::vector<double>{6});
  call.record().DropResult();
}

TEST_F(CallTest, ResultMovesToTheCallerAndIsNotKept) {
  Twice module;
  auto keeping = std::make_shared<Keeping>();
  module.AddInterceptor(keeping);
  const Variable y = module(Value(3));
  EXPECT_TRUE(y.value().storage().unique());
}

TEST_F(CallTest, WrapperMaySeeAndReplaceTheResult) {
  struct Replacing final : Interceptor {
    void Around(const CallContext& call) override {
      call.Proceed();
      call.record().VisitResult([](Variable& v) { v = Scale(v, 10.0); });
    }
  };
  Twice module;
  module.AddInterceptor(std::make_shared<Replacing>());
  EXPECT_EQ(module(Value(3)).value().data<double>()[0], 60);
}

template <typename T>
Words Visited(T value) {
  Words seen;
  internal::VisitAny(value, [&](Variable& v) {
    seen.push_back(std::to_string(static_cast<int>(v.value().data<double>()[0])));
  });
  return seen;
}

TEST_F(CallTest, VisitorFindsVariablesInContainersAndUserStructs) {
  const Variable a = Value(1);
  const Variable b = Value(2);
  const Variable c = Value(3);
  EXPECT_EQ(Visited(a), (Words{"1"}));
  EXPECT_EQ(Visited(std::vector<Variable>{a, b}), (Words{"1", "2"}));
  EXPECT_EQ(Visited(std::make_tuple(a, 7, std::string("x"), b)), (Words{"1", "2"}));
  EXPECT_EQ(Visited(std::make_pair(5, b)), (Words{"2"}));
  EXPECT_EQ(Visited(std::optional<Variable>(a)), (Words{"1"}));
  EXPECT_EQ(Visited(std::optional<Variable>()), (Words{}));
  EXPECT_EQ(Visited(std::array<Variable, 2>{a, c}), (Words{"1", "3"}));
  EXPECT_EQ(Visited(std::map<std::string, Variable>{{"z", a}, {"y", b}}), (Words{"2", "1"}));
  EXPECT_EQ(Visited(elsewhere::Batch{a, {{b}, {c}}, 4}), (Words{"1", "2", "3"}));
  EXPECT_EQ(Visited(std::vector<std::optional<elsewhere::Batch>>{elsewhere::Batch{a, {}, 4}}),
            (Words{"1"}));
  EXPECT_EQ(Visited(std::vector<bool>{true}), (Words{}));
  EXPECT_EQ(Visited(5), (Words{}));
}

struct Log final : ScopeObserver {
  explicit Log(Words& words) : words(words) {}
  void BackwardEnter() override {
    words.push_back(name + " enter");
    if (fail_on_enter) ThrowInvalidArgument("cannot enter");
  }
  void BackwardExit() override { words.push_back(name + " exit"); }
  void BackwardAbandon() noexcept override { words.push_back(name + " abandon"); }
  Words& words;
  std::string name = "a";
  bool fail_on_enter = false;
};

class ScopeTest : public CallTest {
 protected:
  Variable Leaf(double value) { return Variable::Leaf(Value(value).value()); }
  Tape tape_;
  Twice module_;
  Log a_{log_};
};

TEST_F(ScopeTest, BackwardEntersAndLeavesEachCallOnce) {
  const Variable x = Leaf(1);
  const Recording on(tape_);
  Variable y = x;
  for (int i = 0; i < 3; ++i) {
    const ScopeGuard scope(a_, &module_);
    y = Scale(y, 2.0);
  }
  tape_.Backward(y);
  EXPECT_EQ(log_, (Words{"a enter", "a exit", "a enter", "a exit", "a enter", "a exit"}));
}

TEST_F(ScopeTest, CallTheLossDoesNotDependOnIsSkippedUnlessAlwaysLive) {
  const Variable x = Leaf(1);
  const Recording on(tape_);
  Log b{log_};
  b.name = "b";
  Log c{log_};
  c.name = "c";
  {
    const ScopeGuard scope(a_, &module_);
    Scale(x, 3.0);
  }
  { const ScopeGuard scope(b, &module_, /*always_live=*/true); }
  Variable y;
  {
    const ScopeGuard outer(c, &module_);
    { const ScopeGuard empty(a_, &module_); }
    y = Scale(x, 2.0);
  }
  tape_.Backward(y);
  EXPECT_EQ(log_, (Words{"c enter", "c exit", "b enter", "b exit"}));
}

TEST_F(ScopeTest, CallWithoutGradientInputsIsEnteredForItsParameters) {
  const Variable weight = Leaf(2);
  const Recording on(tape_);
  Variable y;
  {
    const ScopeGuard scope(a_, &module_);
    y = Mul(Value(5), weight);
  }
  tape_.Backward(y);
  EXPECT_EQ(log_, (Words{"a enter", "a exit"}));
}

TEST_F(ScopeTest, BackwardInsideAnOpenCallNamesTheModule) {
  const Variable x = Leaf(1);
  const Recording on(tape_);
  const Variable y = Scale(x, 2.0);
  struct Parent : Module {
    Parent() { RegisterModule("block", block); }
    Twice block;
  } parent;
  {
    const ScopeGuard scope(a_, &parent.block);
    EXPECT_TRUE(Contains(ErrorOf([&] { tape_.Backward(y); }), "open call of block"));
  }
  EXPECT_EQ(ErrorOf([&] { tape_.Backward(y); }), "no error");
}

TEST_F(ScopeTest, FailedBackwardAbandonsEnteredCallsInnermostFirst) {
  const Variable x = Leaf(1);
  const Recording on(tape_);
  Log b{log_};
  b.name = "b";
  Log c{log_};
  c.name = "c";
  c.fail_on_enter = true;
  Variable y = x;
  {
    const ScopeGuard outer(a_, &module_);
    const ScopeGuard inner(b, &module_);
    const ScopeGuard innermost(c, &module_);
    y = Scale(y, 2.0);
  }
  EXPECT_TRUE(Contains(ErrorOf([&] { tape_.Backward(y); }), "cannot enter"));
  EXPECT_EQ(log_, (Words{"a enter", "b enter", "c enter", "b abandon", "a abandon"}));
}

TEST_F(ScopeTest, ExceptionInACallClosesItsBracket) {
  const Variable x = Leaf(1);
  const Recording on(tape_);
  EXPECT_NE(ErrorOf([&] {
              const ScopeGuard scope(a_, &module_);
              Add(x, Variable());
            }),
            "no error");
  tape_.Backward(Scale(x, 2.0));
  EXPECT_EQ(log_, Words{});
}

TEST_F(ScopeTest, ResetInsideAnOpenCallForgetsIt) {
  const Variable x = Leaf(1);
  const Recording on(tape_);
  {
    const ScopeGuard scope(a_, &module_);
    tape_.Reset();
  }
  tape_.Backward(Scale(x, 2.0));
  EXPECT_EQ(log_, Words{});
}

TEST_F(ScopeTest, NoScopeWithoutARecording) {
  const ScopeGuard scope(a_, &module_);
  EXPECT_FALSE(ScopeGuard::OnTape());
  EXPECT_FALSE(ScopeGuard::InRecompute());
}

}  // namespace
}  // namespace sherd::testing
