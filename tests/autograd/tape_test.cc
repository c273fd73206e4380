// What a tape records, and that every contribution to a gradient arrives once.

#include "sherd/autograd/tape.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

class TapeTest : public ::testing::Test {
 protected:
  Variable Leaf(const std::vector<double>& values) {
    return Variable::Leaf(TensorOf<double>(device_, values, {static_cast<int64_t>(values.size())}));
  }
  static std::vector<double> Grad(const Variable& leaf) {
    return leaf.grad().defined() ? leaf.grad().ToHost<double>() : std::vector<double>{};
  }

  Device device_ = Device::Cpu();
  Tape tape_;
};

using Doubles = std::vector<double>;

// Hands its gradient on to both operands unchanged, as one tensor.
class ForkOp final : public Op {
 public:
  std::string_view name() const override { return "fork"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override { AddInLoop(f); }
  void Backward(OpBackward& b) const override {
    b.Pass(0, b.grad());
    b.Pass(1, b.grad());
  }

 private:
  static void AddInLoop(OpForward& f) {
    for (int64_t i = 0; i < f.outputs[0].numel(); ++i) {
      f.outputs[0].data<double>()[i] =
          f.inputs[0].data<double>()[i] + f.inputs[1].data<double>()[i];
    }
  }
};

TEST_F(TapeTest, ResidualConnectionAddsTrunkAndBranch) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  tape_.Backward(Sum(Add(x, Scale(x, 3.0))));
  EXPECT_EQ(Grad(x), (Doubles{4, 4}));
}

TEST_F(TapeTest, ChainOfResidualsDoublesTheGradientEachTime) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  Variable y = x;
  for (int i = 0; i < 10; ++i) y = Add(y, Scale(y, 1.0));
  tape_.Backward(Sum(y));
  EXPECT_EQ(Grad(x), (Doubles{1024, 1024}));
}

TEST_F(TapeTest, SumOfOneVariableWithItselfCountsTwice) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const Variable y = Scale(x, 1.0);
  tape_.Backward(Sum(Add(y, y)));
  EXPECT_EQ(Grad(x), (Doubles{2, 2}));
}

TEST_F(TapeTest, OneGradientPassedToTwoIsNotAddedToInPlace) {
  const Variable a = Leaf({1, 2});
  const Variable b = Leaf({3, 4});
  const Recording on(tape_);
  const Variable y = Scale(a, 1.0);
  const Variable z = Scale(b, 1.0);
  // In backward the fork hands one tensor to y and z; y then gets more.
  const Variable more = Scale(y, 10.0);
  const Variable both = ApplyOne(ForkOp(), {y, z}, CallSite::Here());
  tape_.Backward(Add(Sum(more), Sum(both)));
  EXPECT_EQ(Grad(a), (Doubles{11, 11}));
  EXPECT_EQ(Grad(b), (Doubles{1, 1}));
}

TEST_F(TapeTest, GradientSharedWithALeafIsNotAddedToInPlace) {
  const Variable a = Leaf({1, 2});
  const Variable b = Leaf({3, 4});
  const Recording on(tape_);
  // `a` gets the first contribution from `both` and a second one from the scale recorded before it.
  const Variable more = Scale(a, 10.0);
  const Variable both = ApplyOne(ForkOp(), {a, b}, CallSite::Here());
  tape_.Backward(Add(Sum(more), Sum(both)));
  EXPECT_EQ(Grad(a), (Doubles{11, 11}));
  EXPECT_EQ(Grad(b), (Doubles{1, 1}));
}

TEST_F(TapeTest, SeedsOfTheCallerAreNotWrittenTo) {
  const Variable x = Leaf({1, 2});
  const Tensor seed = TensorOf<double>(device_, {5, 7}, {2});
  const Recording on(tape_);
  const Variable y = Scale(x, 2.0);
  const std::array<Variable, 2> roots = {y, y};
  const std::array<Tensor, 2> seeds = {seed, seed};
  tape_.Backward(roots, seeds);
  EXPECT_EQ(Grad(x), (Doubles{20, 28}));
  EXPECT_EQ(seed.ToHost<double>(), (Doubles{5, 7}));
}

TEST_F(TapeTest, TwoViewsOfOneVariableAddUp) {
  const Variable x = Leaf({1, 2, 3, 4});
  const Recording on(tape_);
  const Variable a = Reshape(x, {2, 2});
  const Variable b = Reshape(x, {2, 2});
  tape_.Backward(Sum(Add(Scale(a, 2.0), Add(b, b))));
  EXPECT_EQ(Grad(x), (Doubles{4, 4, 4, 4}));
}

TEST_F(TapeTest, StridedSeedFlowsThroughViews) {
  const Variable x = Leaf({1, 2, 3, 4});
  // Columns 0 and 1 of three: no view of four elements in a row.
  const Tensor seed = TensorOf<double>(device_, {1, 2, 9, 3, 4, 9}, {2, 3}).Slice(1, 0, 2);
  const Recording on(tape_);
  const Variable y = Reshape(x, {2, 2});
  tape_.Backward({&y, 1}, {&seed, 1});
  EXPECT_EQ(Grad(x), (Doubles{1, 2, 3, 4}));
}

TEST_F(TapeTest, VariableUsedManyTimesGetsEveryContribution) {
  const Variable x = Leaf({2});
  const Recording on(tape_);
  Variable total = Scale(x, 1.0);
  for (int k = 2; k <= 20; ++k) total = Add(total, Scale(x, k));
  tape_.Backward(total);
  EXPECT_EQ(Grad(x), (Doubles{210}));
}

TEST_F(TapeTest, UnusedOutputsGetNoGradientAndRunNoBackward) {
  const Variable x = Leaf({1, 2});
  const Variable y = Leaf({1, 2});
  const Recording on(tape_);
  const Variable unused = Mul(y, y);
  tape_.Backward(Sum(x));
  EXPECT_EQ(Grad(x), (Doubles{1, 1}));
  EXPECT_FALSE(y.grad().defined());
}

TEST_F(TapeTest, LeafGradientsAddUpOverBackwardsAndTapes) {
  const Variable x = Leaf({1, 2});
  Tape other;
  {
    const Recording on(tape_);
    tape_.Backward(Sum(Scale(x, 2.0)));
  }
  const Tensor first = x.grad();
  {
    const Recording on(other);
    other.Backward(Sum(Scale(x, 3.0)));
  }
  EXPECT_EQ(Grad(x), (Doubles{5, 5}));
  EXPECT_EQ(first.ToHost<double>(), (Doubles{2, 2})) << "a gradient somebody holds changed";
  x.ClearGrad();
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(TapeTest, TapeIsReusableAfterReset) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  for (int step = 1; step <= 3; ++step) {
    tape_.Backward(Sum(Scale(x, step)));
    EXPECT_GT(tape_.ops(), 0);
    tape_.Reset();
    EXPECT_EQ(tape_.ops(), 0);
  }
  EXPECT_EQ(Grad(x), (Doubles{6, 6}));
}

TEST_F(TapeTest, NothingIsRecordedWithoutARecording) {
  const Variable x = Leaf({1, 2});
  EXPECT_FALSE(IsRecording());
  EXPECT_EQ(CurrentTape(), nullptr);
  EXPECT_FALSE(Scale(x, 2.0).requires_grad());
  {
    const Recording on(tape_);
    EXPECT_TRUE(IsRecording());
    EXPECT_EQ(CurrentTape(), &tape_);
    EXPECT_TRUE(Scale(x, 2.0).requires_grad());
  }
  EXPECT_FALSE(Scale(x, 2.0).requires_grad());
  EXPECT_EQ(tape_.ops(), 1);
}

TEST_F(TapeTest, OpsOnConstantsAreNotRecorded) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  EXPECT_FALSE(Scale(x.Detach(), 2.0).requires_grad());
  EXPECT_EQ(tape_.ops(), 0);
}

TEST_F(TapeTest, InnermostRecordingCounts) {
  const Variable x = Leaf({3});
  Tape inner;
  const Recording on(tape_);
  const Variable y = Scale(x, 2.0);
  {
    const Recording nested(inner);
    EXPECT_EQ(CurrentTape(), &inner);
    inner.Backward(Scale(x, 5.0));
  }
  EXPECT_EQ(CurrentTape(), &tape_);
  tape_.Backward(y);
  EXPECT_EQ(Grad(x), (Doubles{7}));
}

TEST_F(TapeTest, FrozenParametersGetNoGradientButPassItOn) {
  LinearLayer frozen(2, 2, Initializer::Constant(2.0), DType::kF64);
  LinearLayer trained(2, 2, Initializer::Constant(3.0), DType::kF64);
  Initialize(frozen, device_, 1);
  Initialize(trained, device_, 1);
  frozen.weight().set_requires_grad(false);
  const Recording on(tape_);
  const Variable x = TensorOf<double>(device_, {1, 1}, {1, 2});
  tape_.Backward(Sum(frozen(trained(x))));
  EXPECT_FALSE(frozen.weight().local_grad().defined());
  EXPECT_EQ(trained.weight().local_grad().ToHost<double>(), (Doubles{4, 4, 4, 4}));
}

TEST_F(TapeTest, ParameterGradientsAddUpUntilCleared) {
  LinearLayer layer(1, 1, Initializer::Constant(2.0), DType::kF64);
  Initialize(layer, device_, 1);
  const Recording on(tape_);
  const Variable x = TensorOf<double>(device_, {5}, {1, 1});
  for (int k = 0; k < 2; ++k) {
    tape_.Backward(Sum(layer(x)));
    tape_.Reset();
  }
  EXPECT_EQ(layer.weight().local_grad().ToHost<double>(), (Doubles{10}));
  layer.weight().ClearGrad();
  EXPECT_FALSE(layer.weight().local_grad().defined());
  tape_.Backward(Sum(layer(x)));
  EXPECT_EQ(layer.weight().local_grad().ToHost<double>(), (Doubles{5}));
}

TEST_F(TapeTest, LongChainsNeedNoStack) {
  constexpr int kOps = 200000;
  const Variable x = Leaf({1});
  const Recording on(tape_);
  Variable y = x;
  for (int i = 0; i < kOps; ++i) y = Scale(y, i % 2 == 0 ? 2.0 : 0.5);
  EXPECT_EQ(tape_.ops(), kOps);
  tape_.Backward(y);
  EXPECT_EQ(Grad(x), (Doubles{1}));
}

TEST_F(TapeTest, BackwardAndResetLeaveNoActivations) {
  const Variable x = Leaf(Doubles(1024, 1.0));
  const auto held = [&] {
    return device_.allocator().stats()[MemoryCategory::kActivation].current_bytes;
  };
  const int64_t before = held();
  {
    const Recording on(tape_);
    tape_.Backward(Sum(Mul(Silu(x), Silu(x))));
  }
  const int64_t gradient = x.grad().bytes();
  EXPECT_EQ(held(), before + gradient) << "after backward";
  tape_.Reset();
  x.ClearGrad();
  EXPECT_EQ(held(), before);
}

TEST_F(TapeTest, KeepsOnlyWhatBackwardReads) {
  const Variable x = Leaf(Doubles(1024, 1.0));
  const auto held = [&] {
    return device_.allocator().stats()[MemoryCategory::kActivation].current_bytes;
  };
  const int64_t before = held();
  const Recording on(tape_);
  Variable y = x;
  for (int i = 0; i < 10; ++i) y = Add(Scale(y, 0.5), y);
  EXPECT_EQ(held(), before + y.value().bytes());
}

TEST_F(TapeTest, InputsOfFrozenWeightsAreNotKept) {
  LinearLayer layer(1024, 1, Initializer::Constant(2.0), DType::kF64);
  Initialize(layer, device_, 1);
  const auto held = [&] {
    return device_.allocator().stats()[MemoryCategory::kActivation].current_bytes;
  };
  const Variable x = Leaf(Doubles(1024, 1.0));
  const auto bytes_after_forward = [&](bool frozen) {
    layer.weight().set_requires_grad(!frozen);
    const int64_t before = held();
    const Recording on(tape_);
    const Variable z = layer(Reshape(Scale(x, 1.0), {1, 1024}));
    const int64_t bytes = held() - before;
    tape_.Backward(Sum(z));
    tape_.Reset();
    return bytes;
  };
  EXPECT_GE(bytes_after_forward(false), x.value().bytes());
  EXPECT_LT(bytes_after_forward(true), 1024);
  EXPECT_EQ(x.grad().ToHost<double>(), Doubles(1024, 4.0));
}

}  // namespace
}  // namespace sherd::testing
