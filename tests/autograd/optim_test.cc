// Groups, dtypes, refusals and state of optimizers.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/sgd.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/autograd/optim.h"

namespace sherd::testing {
namespace {

const std::vector<std::pair<std::string, Shape>> kLeaves = {
    {"weight", {2, 3}}, {"bias", {3}}, {"head", {3, 2}}};

ParameterGroup Group(const std::string& name, std::function<bool(const Parameter&)> matches) {
  return {.name = name, .matches = std::move(matches)};
}

// How much a step of rate 1 with zero gradients takes off each parameter: its decay.
std::vector<double> DecaysOf(std::vector<ParameterGroup> groups) {
  const Bare model(kLeaves, DType::kF64);
  Sgd optimizer(model.parameters(), {.weight_decay = 0.25, .groups = std::move(groups)});
  std::vector<double> decays;
  for (const Parameter& parameter : model.parameters()) {
    SetGrad(parameter, Tensor::Zeros(Device::Cpu(), DType::kF64, parameter.shape()));
    kernels::Fill(parameter.MutableLocal(), 1.0);
  }
  optimizer.Step({.learning_rate = 1.0});
  for (const Parameter& parameter : model.parameters()) {
    decays.push_back(1.0 - Host(parameter.local())[0]);
  }
  return decays;
}

TEST(ParameterGroups, WithoutOneMatricesDecay) {
  EXPECT_EQ(DecaysOf({}), (std::vector<double>{0.25, 0.0, 0.25}));
}

TEST(ParameterGroups, TheFirstThatMatchesWins) {
  ParameterGroup head = Group("head", NameContains("head"));
  head.weight_decay = 0.0;
  ParameterGroup all = Group("all", [](const Parameter&) { return true; });
  all.weight_decay = 0.5;
  all.lr_scale = 0.5;
  EXPECT_EQ(DecaysOf({head, all}), (std::vector<double>{0.25, 0.25, 0.0}));
  // Without a decay of its own a group keeps the optimizer's, and its rule.
  all.weight_decay = std::nullopt;
  EXPECT_EQ(DecaysOf({head, all}), (std::vector<double>{0.125, 0.0, 0.0}));
}

TEST(ParameterGroups, SeeWholeShapes) {
  ParameterGroup wide = Group("wide", [](const Parameter& p) {
    return p.shape() == Shape({3, 2});
  });
  wide.weight_decay = 0.0;
  EXPECT_EQ(DecaysOf({wide}), (std::vector<double>{0.25, 0.0, 0.0}));
}

TEST(ParameterGroups, OneWithoutParametersIsRefused) {
  const auto error = [](std::vector<ParameterGroup> groups) {
    return ErrorOf([&] { DecaysOf(std::move(groups)); });
  };
  EXPECT_TRUE(
      Contains(error({Group("norms", NameContains("norm"))}), "group 'norms' has no param"));
  EXPECT_TRUE(Contains(error({Group("a", NameContains("head")), Group("b", NameContains("head"))}),
                       "group 'b' has"));
  EXPECT_TRUE(Contains(error({Group("empty", nullptr)}), "group 'empty' has no predicate"));
  ParameterGroup negative = Group("head", NameContains("head"));
  negative.lr_scale = -1.0;
  EXPECT_TRUE(Contains(error({negative}), "group 'head': lr_scale is 0 or more, got -1"));
  negative.lr_scale = 1.0;
  negative.weight_decay = std::nan("");
  EXPECT_TRUE(Contains(error({negative}), "group 'head': weight_decay is 0 or more, got nan"));
}

TEST(Optimizers, RefuseNumbersOutsideTheirRange) {
  const Bare model(kLeaves, DType::kF32);
  const auto adamw = [&](AdamWOptions options) {
    return ErrorOf([&] { AdamW optimizer(model.parameters(), options); });
  };
  const auto sgd = [&](SgdOptions options) {
    return ErrorOf([&] { Sgd optimizer(model.parameters(), options); });
  };
  EXPECT_TRUE(Contains(adamw({.beta2 = 1.0}), "less than 1, got 1"));
  EXPECT_TRUE(Contains(adamw({.eps = -1e-8}), "eps is 0 or more"));
  EXPECT_TRUE(Contains(adamw({.weight_decay = -0.1}), "weight_decay is 0 or more, got -0.1"));
  EXPECT_TRUE(Contains(adamw({.moment_dtype = DType::kI32}), "not in i32"));
  EXPECT_TRUE(Contains(sgd({.momentum = -0.1}), "momentum is 0 or more"));
  EXPECT_TRUE(Contains(sgd({.momentum = 0.9, .dampening = 2.0}), "dampening is from 0 to 1"));
  EXPECT_TRUE(Contains(sgd({.nesterov = true}), "nesterov needs a momentum"));
  EXPECT_TRUE(Contains(sgd({.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
                       "momentum 0.9 and dampening 0.1"));
}

// One AdamW step by the formula, in f64, from zero moments.
double AdamWValue(double p, double g, const AdamWOptions& o, double lr, bool decays) {
  const double m = g, v = g * g;  // after bias correction
  return p * (1 - (decays ? lr * o.weight_decay : 0.0)) - lr * m / (std::sqrt(v) + o.eps);
}

TEST(Optimizers, GradientsMayHaveAnotherDtype) {
  const AdamWOptions options = {.eps = 1e-2, .weight_decay = 0.1};
  for (DType param : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType grad : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Bare model(kLeaves, param);
      std::vector<std::vector<double>> values, gradients;
      for (const Parameter& parameter : model.parameters()) {
        const Tensor g = In(grad, NormalTensor(Device::Cpu(), DType::kF32, parameter.shape(), 8));
        SetGrad(parameter, g);
        values.push_back(Host(parameter.local()));
        gradients.push_back(Host(g));
      }
      AdamW optimizer(model.parameters(), options);
      optimizer.Step({.learning_rate = 0.05, .grad_scale = 0.5});
      const double tolerance = param == DType::kF32 ? 1e-6 : param == DType::kF16 ? 1e-3 : 8e-3;
      for (size_t i = 0; i < values.size(); ++i) {
        const std::vector<double> got = Host(model[i].local());
        for (size_t e = 0; e < got.size(); ++e) {
          const double want =
              AdamWValue(values[i][e], 0.5 * gradients[i][e], options, 0.05, i != 1);
          EXPECT_NEAR(got[e], want, tolerance * (1 + std::abs(want)))
              << NameOf(param) << " " << NameOf(grad);
        }
      }
    }
  }
}

TEST(Optimizers, MomentsHaveTheDtypeAskedFor) {
  const auto bytes = [](std::optional<DType> dtype) {
    const Bare model({{"weight", {64, 32}}}, DType::kF32);
    SetGrad(model[0], NormalTensor(Device::Cpu(), DType::kF32, {64, 32}, 3));
    AdamW optimizer(model.parameters(), {.moment_dtype = dtype});
    optimizer.Step({.learning_rate = 0.1});
    const MemoryStats stats = model[0].local().device().allocator().stats();
    return stats[MemoryCategory::kOptimizer].current_bytes;
  };
  EXPECT_EQ(bytes(std::nullopt), 2 * 4 * 64 * 32);
  EXPECT_EQ(bytes(DType::kBF16), 2 * 2 * 64 * 32);
}

// Every state by "<parameter>/<name>".
class Saved : public OptimizerStateVisitor {
 public:
  void OnTensor(const Parameter& p, std::string_view name, const Tensor& local) override {
    EXPECT_EQ(local.shape(), p.local().shape());
    tensors[p.name() + "/" + std::string(name)] = Host(local);
  }
  void OnCount(const Parameter& p, std::string_view name, int64_t& count) override {
    counts[p.name() + "/" + std::string(name)] = count;
  }
  std::map<std::string, std::vector<double>> tensors;
  std::map<std::string, int64_t> counts;
};

class Loading : public OptimizerStateVisitor {
 public:
  explicit Loading(const Saved& saved) : saved_(saved) {}
  void OnTensor(const Parameter& p, std::string_view name, const Tensor& local) override {
    const auto& values = saved_.tensors.at(p.name() + "/" + std::string(name));
    kernels::Cast(TensorOf<double>(Device::Cpu(), values, local.shape()), local);
  }
  void OnCount(const Parameter& p, std::string_view name, int64_t& count) override {
    count = saved_.counts.at(p.name() + "/" + std::string(name));
  }

 private:
  const Saved& saved_;
};

template <typename Optim, typename Options>
void ExpectContinues(const Options& options) {
  const auto step = [](const Bare& model, Optimizer& optimizer, uint64_t seed) {
    for (const Parameter& parameter : model.parameters()) {
      SetGrad(parameter, NormalTensor(Device::Cpu(), DType::kF32, parameter.shape(), seed));
    }
    optimizer.Step({.learning_rate = 0.1});
  };
  const Bare model(kLeaves, DType::kF32), copy(kLeaves, DType::kF32);
  Optim optimizer(model.parameters(), options);
  for (uint64_t s = 0; s < 3; ++s) step(model, optimizer, s);
  Saved saved;
  optimizer.VisitState(saved);
  for (size_t i = 0; i < kLeaves.size(); ++i) {
    kernels::Copy(model[i].local(), copy[i].MutableLocal());
  }
  Optim other(copy.parameters(), options);
  Loading loading(saved);
  other.VisitState(loading);
  step(model, optimizer, 9);
  step(copy, other, 9);
  for (size_t i = 0; i < kLeaves.size(); ++i) {
    EXPECT_TRUE(SameBits(model[i].local(), copy[i].local()));
  }
}

TEST(OptimizerState, VisitedAndWrittenBackContinuesWithTheSameBits) {
  ExpectContinues<AdamW>(AdamWOptions{});
  ExpectContinues<AdamW>(AdamWOptions{.moment_dtype = DType::kBF16});
  ExpectContinues<Sgd>(SgdOptions{.momentum = 0.9, .dampening = 0.5});
}

TEST(OptimizerState, HasTheMomentsAndStepsOfEveryTrainableParameter) {
  const Bare model(kLeaves, DType::kF32);
  model[2].set_requires_grad(false);
  AdamW optimizer(model.parameters(), {.beta1 = 0.75, .beta2 = 0.5});
  kernels::Fill(model[0].MutableLocal(), 0.0);
  const Tensor ones = Tensor::Empty(Device::Cpu(), DType::kF32, {2, 3});
  kernels::Fill(ones, 1.0);
  SetGrad(model[0], ones);
  optimizer.Step({.learning_rate = 0.0});
  Saved saved;
  optimizer.VisitState(saved);
  EXPECT_EQ(saved.counts, (std::map<std::string, int64_t>{{"weight/step", 1}, {"bias/step", 0}}));
  EXPECT_EQ(saved.tensors.size(), 4u);
  EXPECT_EQ(saved.tensors["weight/m"], std::vector<double>(6, 0.25));
  EXPECT_EQ(saved.tensors["weight/v"], std::vector<double>(6, 0.5));
  EXPECT_EQ(saved.tensors["bias/m"], std::vector<double>(3, 0.0));
}

class Stateless : public Optimizer {
 public:
  void Step(const StepOptions&) override {}
  const std::vector<Parameter>& parameters() const override { return none_; }

 private:
  std::vector<Parameter> none_;
};

TEST(OptimizerState, OfAnOptimizerThatShowsNoneIsRefused) {
  Stateless optimizer;
  Saved saved;
  EXPECT_TRUE(Contains(ErrorOf([&] { optimizer.VisitState(saved); }), "does not show its state"));
}

}  // namespace
}  // namespace sherd::testing
