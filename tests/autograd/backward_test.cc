// Which gradients a backward computes: several roots and seeds, several backwards over one record,
// retained records, tapes inside tapes, and what hooks see.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using Doubles = std::vector<double>;

class BackwardTest : public ::testing::Test {
 protected:
  Tensor Of(const Doubles& values) {
    return TensorOf<double>(device_, values, {static_cast<int64_t>(values.size())});
  }
  Variable Leaf(const Doubles& values) { return Variable::Leaf(Of(values)); }
  static Doubles Grad(const Variable& leaf) {
    return leaf.grad().defined() ? leaf.grad().ToHost<double>() : Doubles{};
  }

  Device device_ = Device::Cpu();
  Tape tape_;
};

TEST_F(BackwardTest, SeveralRootsAddTheirProducts) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const Variable a = Scale(x, 3.0);
  const Variable b = Mul(x, x);
  tape_.Backward({a, b}, {Of({1, 10}), Of({100, 1000})});
  EXPECT_EQ(Grad(x), (Doubles{3 + 200, 30 + 4000}));
}

TEST_F(BackwardTest, ARootMayDependOnAnotherAndBeGivenTwice) {
  const Variable x = Leaf({1});
  const Recording on(tape_);
  const Variable a = Scale(x, 3.0);
  const Variable b = Scale(a, 5.0);
  tape_.Backward({a, b, a}, {Of({1}), Of({10}), Of({100})});
  EXPECT_EQ(Grad(x), (Doubles{3 * (1 + 100) + 15 * 10}));
}

TEST_F(BackwardTest, AGradientFromOutsideEntersInTheMiddle) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const Variable hidden = Scale(x, 2.0);
  const Variable head = Variable::Leaf(hidden.value());  // the rest runs elsewhere
  Tape elsewhere;
  {
    const Recording there(elsewhere);
    elsewhere.Backward(Sum(Mul(head, head)));
  }
  tape_.Backward({hidden}, {head.grad()});
  EXPECT_EQ(Grad(x), (Doubles{2 * 2 * 2, 2 * 2 * 4}));
}

TEST_F(BackwardTest, ALeafAsRootGetsItsSeed) {
  const Variable x = Leaf({1, 2});
  const Tensor seed = Of({3, 4});
  tape_.Backward({x}, {seed});
  kernels::Fill(seed, 0.0);
  EXPECT_EQ(Grad(x), (Doubles{3, 4}));
}

TEST_F(BackwardTest, TwoForwardsThenTwoBackwards) {
  const Variable x = Leaf({1});
  const Recording on(tape_);
  const Variable first = Scale(x, 3.0);
  const Variable second = Scale(Mul(x, x), 5.0);
  tape_.Backward(first);
  EXPECT_EQ(Grad(x), (Doubles{3}));
  tape_.Backward(second);
  EXPECT_EQ(Grad(x), (Doubles{3 + 10}));
}

TEST_F(BackwardTest, RecordingGoesOnAfterABackward) {
  const Variable x = Leaf({2});
  const Recording on(tape_);
  const Variable kept = Scale(x, 3.0);
  tape_.Backward(Scale(x, 7.0));
  tape_.Backward(Mul(kept, kept));  // kept was recorded before that backward
  EXPECT_EQ(Grad(x), (Doubles{7 + 2 * 6 * 3}));
}

TEST_F(BackwardTest, ASharedTrunkNeedsRetaining) {
  const Variable x = Leaf({2});
  const Recording on(tape_);
  const Variable trunk = Mul(x, x);
  const Variable a = Scale(trunk, 1.0);
  const Variable b = Scale(trunk, 10.0);
  tape_.Backward(a, 1.0, {.retain = true});
  EXPECT_EQ(Grad(x), (Doubles{4}));
  tape_.Backward(b);
  EXPECT_EQ(Grad(x), (Doubles{4 + 40}));
  const std::string text = ErrorOf([&] { tape_.Backward(a); });
  EXPECT_TRUE(Contains(text, "gave up what 'mul' had saved"));
  EXPECT_EQ(Grad(x), (Doubles{44}));
}

TEST_F(BackwardTest, ARetainedRecordGivesTheSameGradientAgain) {
  const Variable x = Leaf({2, 3});
  const Recording on(tape_);
  const Variable y = Sum(Mul(Silu(x), x));
  tape_.Backward(y, 1.0, {.retain = true});
  const Doubles once = Grad(x);
  x.ClearGrad();
  tape_.Backward(y, 1.0, {.retain = true});
  EXPECT_EQ(Grad(x), once);
  x.ClearGrad();
  tape_.Backward(y);
  EXPECT_EQ(Grad(x), once);
}

TEST_F(BackwardTest, WhatOneBackwardDidNotReachStaysForTheNext) {
  const int64_t before = device_.allocator().stats()[MemoryCategory::kActivation].current_bytes;
  const Variable x = Leaf({1, 2});
  {
    const Recording on(tape_);
    const Variable a = Sum(Mul(x, x));
    const Variable b = Sum(Silu(Silu(x)));
    tape_.Backward(a);
    tape_.Backward(b);
  }
  x.ClearGrad();
  EXPECT_EQ(device_.allocator().stats()[MemoryCategory::kActivation].current_bytes, before);
}

TEST_F(BackwardTest, ATapeInsideATapeHasItsOwnGradients) {
  const Variable x = Leaf({2});
  const Recording outer(tape_);
  const Variable y = Scale(x, 3.0);
  Tape inner_tape;
  double slope = 0.0;
  {
    const Recording inner(inner_tape);
    const Variable z = Variable::Leaf(y.value());
    inner_tape.Backward(Mul(z, z));
    slope = z.grad().ToHost<double>()[0];
    EXPECT_TRUE(Contains(ErrorOf([&] { Scale(y, 1.0); }), "Detach()"));
    Scale(y.Detach(), 1.0);
  }
  EXPECT_EQ(slope, 12.0);
  tape_.Backward(Scale(y, slope));
  EXPECT_EQ(Grad(x), (Doubles{36}));
}

TEST_F(BackwardTest, ADetachedVariableIsAConstant) {
  const Variable x = Leaf({3});
  const Recording on(tape_);
  const Variable y = Scale(x, 2.0);
  tape_.Backward(Mul(y, y.Detach()));
  EXPECT_EQ(Grad(x), (Doubles{2 * 6}));
}

TEST_F(BackwardTest, AMillionOps) {
  const Variable x = Leaf({1});
  const Recording on(tape_);
  Variable y = x;
  for (int i = 0; i < 1000000; ++i) y = Scale(y, i % 2 == 0 ? 2.0 : 0.5);
  tape_.Backward(y);
  EXPECT_EQ(Grad(x), (Doubles{1}));
}

TEST_F(BackwardTest, AnEmbeddingRowHitTwiceAddsTwice) {
  const Variable table = Variable::Leaf(TensorOf<double>(device_, {1, 2, 3, 4}, {2, 2}));
  const Recording on(tape_);
  const Variable ids = TensorOf<int64_t>(device_, {1, 0, 1}, {3});
  tape_.Backward({EmbeddingLookup(ids, table)},
                 {TensorOf<double>(device_, {1, 2, 10, 20, 100, 200}, {3, 2})});
  EXPECT_EQ(table.grad().ToHost<double>(), (Doubles{10, 20, 101, 202}));
}

// Hooks.

TEST_F(BackwardTest, AHookSeesTheWholeGradientOnceAndMayReplaceIt) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const Variable y = Scale(x, 3.0);
  std::vector<Doubles> seen;
  y.OnGradient([&](const Tensor& grad) {
    seen.push_back(grad.ToHost<double>());
    const Tensor doubled = Tensor::Empty(grad.device(), grad.dtype(), grad.shape());
    kernels::Scale(grad, 2.0, doubled);
    return doubled;
  });
  tape_.Backward({Add(y, Mul(y, y))}, {Of({1, 1})});
  EXPECT_EQ(seen, (std::vector<Doubles>{{1 + 2 * 3, 1 + 2 * 6}}));
  EXPECT_EQ(Grad(x), (Doubles{2 * 7 * 3, 2 * 13 * 3}));
}

TEST_F(BackwardTest, AHookOfALeafSeesThisBackwardAlone) {
  const Variable x = Leaf({1});
  std::vector<Doubles> seen;
  x.OnGradient([&](const Tensor& grad) {
    seen.push_back(grad.ToHost<double>());
    return grad;
  });
  for (double factor : {2.0, 5.0}) {
    const Recording on(tape_);
    tape_.Backward(Add(Scale(x, factor), Scale(x, 1.0)));
    tape_.Reset();
  }
  EXPECT_EQ(seen, (std::vector<Doubles>{{3}, {6}}));
  EXPECT_EQ(Grad(x), (Doubles{9}));
}

struct Shared : Module {
  Shared() : layer(1, 1, Initializer::Constant(2.0), DType::kF64) {
    RegisterModule("layer", layer);
  }
  LinearLayer layer;
};

TEST_F(BackwardTest, AParameterHookRunsOnceAfterItsLastContribution) {
  Shared model;
  Initialize(model, device_, 1);
  const Parameter weight = model.layer.own_parameters()[0];
  std::vector<Doubles> seen;
  weight.OnGradient([&](const Parameter& p) { seen.push_back(p.local_grad().ToHost<double>()); });
  const Tensor x = TensorOf<double>(device_, {1}, {1, 1});
  const Recording on(tape_);
  Variable y = Variable(x);
  for (int i = 0; i < 3; ++i) y = model.layer(y);  // d(w^3)/dw = 3 w^2
  tape_.Backward(y);
  EXPECT_EQ(seen, (std::vector<Doubles>{{12}}));
  tape_.Backward(model.layer(Variable(x)));
  EXPECT_EQ(seen, (std::vector<Doubles>{{12}, {13}}));
  weight.ClearHooks();
  tape_.Backward(model.layer(Variable(x)));
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(BackwardTest, AParameterHookMayStepTheParameter) {
  Shared model;
  Initialize(model, device_, 1);
  const Parameter weight = model.layer.own_parameters()[0];
  weight.OnGradient([](const Parameter& p) {
    kernels::Scale(p.local_grad(), -0.5, p.MutableLocal(), kernels::Write::kAdd);
  });
  const Variable x = Variable::Leaf(TensorOf<double>(device_, {3}, {1, 1}));
  const Recording on(tape_);
  tape_.Backward(model.layer(Scale(x, 1.0)));
  EXPECT_EQ(weight.local().ToHost<double>(), (Doubles{2 - 1.5}));
  EXPECT_EQ(Grad(x), (Doubles{2}));
}

TEST_F(BackwardTest, WhatAHookThrowsReachesTheCallerAndTheNextStepIsRight) {
  Shared model;
  Initialize(model, device_, 1);
  const Parameter weight = model.layer.own_parameters()[0];
  weight.OnGradient([](const Parameter&) { throw std::runtime_error("the disk is full"); });
  const Variable x = Variable::Leaf(TensorOf<double>(device_, {3}, {1, 1}));
  const Recording on(tape_);
  const Variable y = Scale(model.layer(x), 1.0);
  const std::string text = ErrorOf([&] { tape_.Backward(y); });
  EXPECT_TRUE(Contains(text, "the disk is full"));
  EXPECT_TRUE(Contains(text, "gradient hook"));
  EXPECT_TRUE(Contains(text, "layer"));
  EXPECT_FALSE(x.grad().defined());
  weight.ClearHooks();
  weight.ClearGrad();
  tape_.Reset();
  tape_.Backward(model.layer(x));
  EXPECT_EQ(weight.local_grad().ToHost<double>(), (Doubles{3}));
  EXPECT_EQ(Grad(x), (Doubles{2}));
}

TEST_F(BackwardTest, AHookOfAVariableThatThrowsNamesTheOpAndItsModule) {
  Shared model;
  Initialize(model, device_, 1);
  const Variable x = Variable::Leaf(TensorOf<double>(device_, {3}, {1, 1}));
  const Recording on(tape_);
  const Variable y = model.layer(x);
  y.OnGradient([](const Tensor&) -> Tensor { throw std::runtime_error("no luck"); });
  const std::string text = ErrorOf([&] { tape_.Backward(Scale(y, 1.0)); });
  EXPECT_TRUE(Contains(text, "no luck"));
  EXPECT_TRUE(Contains(text, "layer"));
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(BackwardTest, AHookMustReturnAGradientOfTheSameKind) {
  const Variable x = Leaf({1, 2});
  x.OnGradient([](const Tensor& grad) { return grad.Slice(0, 0, 1); });
  const Recording on(tape_);
  EXPECT_TRUE(Contains(ErrorOf([&] { tape_.Backward(Sum(x)); }), "a hook returned f64 [1]"));
  EXPECT_TRUE(Contains(ErrorOf([&] { Variable(Of({1})).OnGradient({}); }), "constant"));
}

TEST_F(BackwardTest, AHookMayNotWalkTheTapeThatIsWalked) {
  const Variable x = Leaf({2});
  const Recording on(tape_);
  const Variable y = Scale(x, 3.0);
  y.OnGradient([&](const Tensor& grad) {
    tape_.Backward(Scale(x, 1.0));
    return grad;
  });
  EXPECT_TRUE(Contains(ErrorOf([&] { tape_.Backward(y, 1.0, {.retain = true}); }),
                       "hook of a backward over the same tape"));
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(BackwardTest, AHookMayRunABackwardOfAnotherTape) {
  const Variable x = Leaf({2});
  const Recording on(tape_);
  const Variable y = Scale(x, 3.0);
  y.OnGradient([&](const Tensor& grad) {
    Tape other;
    const Recording there(other);
    other.Backward(Mul(x, x));  // x takes part in both
    return grad;
  });
  tape_.Backward(Add(Scale(x, 100.0), y));
  EXPECT_EQ(Grad(x), (Doubles{4 + 103}));
}

}  // namespace
}  // namespace sherd::testing
