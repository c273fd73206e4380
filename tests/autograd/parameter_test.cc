#include "sherd/autograd/parameter.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "sherd/autograd/internal/hooks.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "tests/support/tensors.h"
#include "tests/support/wide_host.h"

namespace sherd::testing {
namespace {

using Doubles = std::vector<double>;

// A weight of 2, by name "layer.weight".
struct Model : Module {
  Model() : layer(1, 1, Initializer::Constant(2.0), DType::kF64) {
    RegisterModule("layer", layer);
    Initialize(*this, Device::Cpu(), 1);
  }
  const Parameter& weight() const { return layer.weight(); }
  Variable operator()(double x) {
    return layer(Variable(TensorOf<double>(weight().local().device(), {x}, {1, 1})));
  }
  LinearLayer layer;
};

TEST(ParameterTest, WindowHooksRunWhenAskedAndNotInABackward) {
  Model model;
  const Parameter weight = model.weight();
  std::vector<std::string> seen;
  weight.OnWindowGradient([&](const Parameter& p) {
    seen.push_back("first " + std::to_string(p.local_grad().ToHost<double>()[0]));
    kernels::Scale(p.local_grad(), 0.5, p.local_grad());
  });
  weight.OnWindowGradient([&](const Parameter& p) {
    seen.push_back("second " + std::to_string(p.local_grad().ToHost<double>()[0]));
  });
  Tape tape;
  const Recording on(tape);
  tape.Backward(model(3.0));
  tape.Backward(model(5.0));
  EXPECT_TRUE(seen.empty());
  EXPECT_TRUE(internal::HasWindowHooks(weight));
  internal::RunWindowHooks(weight);
  EXPECT_EQ(seen, (std::vector<std::string>{"first 8.000000", "second 4.000000"}));
  weight.ClearHooks();
  EXPECT_FALSE(internal::HasWindowHooks(weight));
  internal::RunWindowHooks(weight);
  EXPECT_EQ(seen.size(), 2u);
}

TEST(ParameterTest, BothKindsOfHooksAreKeptApart) {
  Model model;
  const Parameter weight = model.weight();
  int backwards = 0, windows = 0;
  weight.OnGradient([&](const Parameter&) { ++backwards; });
  weight.OnWindowGradient([&](const Parameter& p) {
    ++windows;
    p.ClearHooks();  // while it runs
  });
  Tape tape;
  const Recording on(tape);
  tape.Backward(model(3.0));
  EXPECT_EQ(backwards, 1);
  internal::RunWindowHooks(weight);
  EXPECT_EQ(windows, 1);
  tape.Backward(model(3.0));
  internal::RunWindowHooks(weight);
  EXPECT_EQ(backwards, 1);
  EXPECT_EQ(windows, 1);
}

TEST(ParameterTest, WhatAWindowHookThrowsNamesTheModule) {
  Model model;
  bool ran = false;
  model.weight().OnWindowGradient([](const Parameter&) { throw std::runtime_error("no disk"); });
  model.weight().OnWindowGradient([&](const Parameter&) { ran = true; });
  const std::string text = ErrorOf([&] { internal::RunWindowHooks(model.weight()); });
  EXPECT_TRUE(Contains(text, "no disk"));
  EXPECT_TRUE(Contains(text, "gradient hook"));
  EXPECT_TRUE(Contains(text, "layer"));
  EXPECT_FALSE(ran);
}

// Counts what it is told, and may refuse.
class FreezingHost : public WideHost {
 public:
  FreezingHost() : WideHost(DType::kF64) {}
  void RequiresGradChanged(int index) override {
    told.push_back(index);
    if (refuses) ThrowFailedPrecondition("parameter 'b' changes in a call");
  }
  std::vector<int> told;
  bool refuses = false;
};

TEST(ParameterTest, AHostIsToldOfChangesAndMayRefuseThem) {
  const Device device = Device::Cpu();
  FreezingHost host;
  host.Add(Tensor::Zeros(device, DType::kF64, {2}), "a");
  const Parameter b = host.Add(Tensor::Zeros(device, DType::kF64, {2}), "b");
  b.set_requires_grad(true);
  EXPECT_TRUE(host.told.empty()) << "nothing changed";
  b.set_requires_grad(false);
  EXPECT_FALSE(b.requires_grad());
  EXPECT_EQ(host.told, std::vector<int>{1});
  host.refuses = true;
  EXPECT_TRUE(Contains(ErrorOf([&] { b.set_requires_grad(true); }), "'b' changes in a call"));
  EXPECT_FALSE(b.requires_grad());
  host.refuses = false;
  b.set_requires_grad(true);
  EXPECT_TRUE(b.requires_grad());
  EXPECT_EQ(host.told, (std::vector<int>{1, 1, 1}));
}

TEST(ParameterTest, ARecordKeepsWhoseGradientsItComputes) {
  for (bool wanted : {true, false}) {
    Model model;
    const Parameter weight = model.weight();
    weight.set_requires_grad(wanted);
    int hooks = 0;
    weight.OnGradient([&](const Parameter&) { ++hooks; });
    const Variable scale = Variable::Leaf(TensorOf<double>(Device::Cpu(), {1.0}, {1, 1}));
    Tape tape;
    const Recording on(tape);
    const Variable x = Mul(scale, TensorOf<double>(scale.value().device(), {3.0}, {1, 1}));
    const Variable y = Linear(x, weight);
    weight.set_requires_grad(!wanted);
    const Variable later = Linear(x, weight);
    tape.Backward(y, 1.0, {.retain = true});
    EXPECT_EQ(scale.grad().ToHost<double>(), Doubles{6.0});
    EXPECT_EQ(weight.local_grad().defined(), wanted);
    EXPECT_EQ(hooks, wanted ? 1 : 0);
    if (wanted) {
      EXPECT_EQ(weight.local_grad().ToHost<double>(), Doubles{3.0});
    }
    tape.Backward(later);
    EXPECT_EQ(hooks, 1) << "one of both";
    EXPECT_EQ(weight.local_grad().ToHost<double>(), Doubles{3.0});
  }
}

}  // namespace
}  // namespace sherd::testing
