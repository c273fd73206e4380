// What a checkpointed call takes and returns, how long modules live, and what runs once.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sherd/autograd/ops/transformer.h"
#include "tests/checkpoint/model.h"

namespace sherd::testing {
namespace {

using Doubles = std::vector<double>;

class ArgumentsTest : public ::testing::Test {
 protected:
  Variable Leaf(const Doubles& values) {
    return Variable::Leaf(TensorOf<double>(device_, values, {static_cast<int64_t>(values.size())}));
  }
  Device device_ = Device::Cpu();
  Tape tape_;
};

TEST_F(ArgumentsTest, OptionalAbsentAndPresent) {
  for (bool present : {false, true}) {
    const Variable x = Leaf({1, 2});
    const Variable bias = Leaf({10, 20});
    tape_.Reset();
    const Recording on(tape_);
    const std::optional<Variable> maybe = present ? std::optional<Variable>(bias) : std::nullopt;
    const Variable y = Checkpoint(
        [](const Variable& in, const std::optional<Variable>& b, std::nullptr_t) {
          const Variable squared = Mul(in, in);
          return b.has_value() ? Mul(squared, *b) : squared;
        },
        x, maybe, nullptr);
    tape_.Backward(Sum(y));
    EXPECT_EQ(x.grad().ToHost<double>(), present ? (Doubles{20, 80}) : (Doubles{2, 4}));
    EXPECT_EQ(bias.grad().defined(), present);
  }
}

TEST_F(ArgumentsTest, UndefinedVariableAsANullArgument) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const Variable y =
      Checkpoint([](const Variable& in,
                    const Variable& mask) { return mask.defined() ? Mul(in, mask) : Mul(in, in); },
                 x, Variable());
  tape_.Backward(Sum(y));
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{2, 4}));
}

TEST_F(ArgumentsTest, ListsMapsPairsAndNumbers) {
  const Variable a = Leaf({1, 2});
  const Variable b = Leaf({3, 4});
  const Recording on(tape_);
  const auto body = [](const std::vector<Variable>& list,
                       const std::map<std::string, Variable>& map,
                       const std::pair<int, Variable>& pair, int64_t times, double factor,
                       const std::string& which) {
    Variable y = Mul(list[0], list.at(1));
    for (int64_t i = 0; i < times; ++i) y = Scale(y, factor);
    return std::map<std::string, Variable>{{"y", Mul(y, map.at(which))},
                                           {"z", Scale(pair.second, pair.first)}};
  };
  const auto out = Checkpoint(body, std::vector<Variable>{a, b},
                              std::map<std::string, Variable>{{"a", a}, {"b", b}},
                              std::make_pair(7, b), int64_t{2}, 0.5, std::string("a"));
  tape_.Backward(Sum(Add(out.at("y"), out.at("z"))));
  // y = a a b / 4, z = 7 b.
  EXPECT_EQ(a.grad().ToHost<double>(), (Doubles{2 * 1 * 3 / 4.0, 2 * 2 * 4 / 4.0}));
  EXPECT_EQ(b.grad().ToHost<double>(), (Doubles{1 / 4.0 + 7, 4 / 4.0 + 7}));
}

struct Batch {
  Variable x;
  std::vector<Variable> more;
  std::string note;
};
void VisitVariables(Batch& batch, const VariableVisitor& visit) {
  visit(batch.x);
  VisitVariables(batch.more, visit);
}
struct RunOptions {
  double scale = 1.0;
  std::array<int, 2> repeat = {1, 1};
  bool square = false;
};

TEST_F(ArgumentsTest, StructsInAndOutAndOptionStructs) {
  const Variable x = Leaf({1, 2});
  const Variable w = Leaf({3, 5});
  const Recording on(tape_);
  const Batch out = Checkpoint(
      [](const Batch& in, const RunOptions& options) {
        Variable y = Scale(Mul(in.x, in.more[0]), options.scale);
        if (options.square) y = Mul(y, y);
        return Batch{y, {Scale(in.x, options.repeat[1])}, in.note + "!"};
      },
      Batch{x, {w}, "hello"}, RunOptions{.scale = 2.0, .repeat = {1, 9}, .square = true});
  EXPECT_EQ(out.note, "hello!");
  tape_.Backward(Sum(Add(out.x, out.more[0])));
  // (2 x w)^2 + 9 x.
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{8 * 9 + 9, 8 * 2 * 25 + 9}));
  EXPECT_EQ(w.grad().ToHost<double>(), (Doubles{8 * 3, 8 * 4 * 5}));
}

TEST_F(ArgumentsTest, OutputsThatNeedNoGradient) {
  const Variable x = Leaf({1, 2});
  const Variable ids = TensorOf<int64_t>(device_, {4, 5}, {2});
  const Recording on(tape_);
  const auto [y, constant, integers, count, text] = Checkpoint(
      [](const Variable& in, const Variable& tokens) {
        return std::make_tuple(Mul(in, in), Scale(in.Detach(), 3.0), tokens, 42,
                               std::string("text"));
      },
      x, ids);
  EXPECT_FALSE(constant.requires_grad());
  EXPECT_FALSE(integers.requires_grad());
  EXPECT_EQ(integers.value().ToHost<int64_t>(), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(count, 42);
  EXPECT_EQ(text, "text");
  tape_.Backward(Sum(Mul(y, constant)));
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{6, 24}));
}

TEST_F(ArgumentsTest, FrozenTrunkBeforeATrainedHead) {
  Tensor want;
  for (bool checkpointed : {false, true}) {
    Stack model(DType::kF64, 2, 1);
    Initialize(model, device_, 3);
    for (const Parameter& p : model.parameters()) {
      p.set_requires_grad(p.name().starts_with("block1"));
    }
    if (checkpointed) {
      Checkpoint(model.block(0), {.policy = KeepAll()});
      Checkpoint(model.block(1));
    }
    tape_.Reset();
    const Recording on(tape_, {.samples = {0, 1, 2, 3}});
    const Variable y = Sum(model(TensorOf<int64_t>(device_, {3, 1, 3, 6}, {4})));
    tape_.Backward(y);
    const Tensor grad = model.block(1).up().local_grad();
    EXPECT_FALSE(model.block(0).up().local_grad().defined());
    EXPECT_EQ(model.block(0).runs, 1) << "nothing of the trunk runs again";
    if (checkpointed) {
      EXPECT_TRUE(SameBits(grad, want));
      EXPECT_EQ(StatsOf(model.block(0)).kept_bytes, 0);
      EXPECT_EQ(model.block(1).runs, 2);
    } else {
      want = grad;
    }
  }
}

TEST_F(ArgumentsTest, TokensIntoOneCheckpointAndCapturedVariables) {
  const Variable table = Leaf({1, 2, 3, 4, 5, 6});
  const Variable ids = TensorOf<int64_t>(device_, {2, 0}, {2});
  const Variable hidden = [&] {
    const Recording on(tape_);
    return Scale(table, 2.0);  // captured, and itself recorded outside
  }();
  const Recording on(tape_);
  const Variable y = Checkpoint(
      [hidden](const Variable& tokens) {
        return EmbeddingLookup(tokens, Reshape(hidden, {3, 2}));
      },
      ids);
  EXPECT_EQ(y.value().ToHost<double>(), (Doubles{10, 12, 2, 4}));
  tape_.Backward(Sum(Mul(y, y)));
  // 2 y 2 where a row was taken.
  EXPECT_EQ(table.grad().ToHost<double>(), (Doubles{8, 16, 0, 0, 40, 48}));
}

// Lifetime.

// Notes when it ends.
class Mortal : public Module {
 public:
  explicit Mortal(std::shared_ptr<int> ended) : ended_(std::move(ended)) {}
  ~Mortal() override { ++*ended_; }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Mortal& self, const Variable& x) { return Mul(x, Scale(x, self.factor)); }, x);
  }
  double factor = 3.0;

 private:
  std::shared_ptr<int> ended_;
};

struct Owner : Module {
  explicit Owner(const std::shared_ptr<int>& ended) : child(ended) {
    RegisterModule("child", child);
  }
  Mortal child;
};

TEST_F(ArgumentsTest, SharedModuleLivesUntilItsBackward) {
  for (bool member : {false, true}) {
    auto ended = std::make_shared<int>(0);
    const Variable x = Leaf({1, 2});
    tape_.Reset();
    const Recording on(tape_);
    Variable y;
    {
      auto alone = std::make_shared<Mortal>(ended);
      auto owner = std::make_shared<Owner>(ended);
      Mortal& module = member ? owner->child : *alone;
      Checkpoint(module);
      y = Sum(module(x));
    }
    EXPECT_EQ(*ended, 1) << "the one that was not called";
    tape_.Backward(y);
    EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{6, 12}));
    EXPECT_EQ(*ended, 2) << "its backward was the last to need it";
  }
}

TEST_F(ArgumentsTest, SharedModuleLivesUntilTheResetOrTheLastOfTwoBackwards) {
  auto ended = std::make_shared<int>(0);
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const auto call = [&] {
    auto module = std::make_shared<Mortal>(ended);
    Checkpoint(*module);
    return Sum((*module)(x));
  };
  call();
  EXPECT_EQ(*ended, 0);
  tape_.Reset();
  EXPECT_EQ(*ended, 1);
  const Variable y = call();
  tape_.Backward(y, 1.0, {.retain = true});
  EXPECT_EQ(*ended, 1);
  tape_.Backward(y);
  EXPECT_EQ(*ended, 2);
}

TEST_F(ArgumentsTest, ChildAndParentMayEndInAnyOrder) {
  auto ended = std::make_shared<int>(0);
  auto child = std::make_shared<Mortal>(ended);
  {
    struct Parent : Module {
      void Adopt(Module& m) { RegisterModule("late", m); }
    } parent;
    parent.Adopt(*child);
    EXPECT_EQ(child->path(), "late");
    {
      Mortal shorter(ended);
      struct Wrapper : Module {
        explicit Wrapper(Module& m) { RegisterModule("inner", m); }
      } wrapper(shorter);
      EXPECT_EQ(wrapper.children().size(), 1u);
    }
    EXPECT_EQ(parent.children().size(), 1u);
  }
  EXPECT_EQ(child->parent(), nullptr);
  EXPECT_EQ(child->path(), "late") << "its own name is left";
  struct Parent : Module {
    void Adopt(Module& m) { RegisterModule("again", m); }
  } parent;
  parent.Adopt(*child);
  child.reset();
  EXPECT_TRUE(parent.children().empty());
}

// Counters and statistics.

// Subtracts a running mean that each call moves: kept outside of autograd, changed once a call.
class RunningMean : public Module {
 public:
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](RunningMean& self, const Variable& x) {
          ++self.bodies;
          if (!InRecompute()) {
            ++self.calls;
            const Doubles values = x.value().ToHost<double>();
            double mean = 0.0;
            for (double v : values) mean += v / static_cast<double>(values.size());
            self.mean = 0.9 * self.mean + 0.1 * mean;
          }
          return Silu(Mul(x, x));
        },
        x);
  }
  double mean = 0.0;
  int calls = 0;
  int bodies = 0;
};

TEST_F(ArgumentsTest, RunningStatisticsMoveOnceACall) {
  for (int levels = 0; levels <= 2; ++levels) {
    RunningMean module;
    for (int i = 0; i < levels; ++i) Checkpoint(module);
    const Variable x = Leaf({1, 3});
    tape_.Reset();
    EXPECT_FALSE(InRecompute());
    const Recording on(tape_);
    EXPECT_FALSE(InRecompute());
    const Variable y = Sum(module(module(x)));
    const double mean = module.mean;
    EXPECT_EQ(module.calls, 2);
    tape_.Backward(y);
    EXPECT_FALSE(InRecompute());
    EXPECT_EQ(module.calls, 2) << levels;
    EXPECT_EQ(module.mean, mean);
    EXPECT_EQ(module.bodies, 2 * (1 + levels)) << "it did run again";
  }
}

}  // namespace
}  // namespace sherd::testing
