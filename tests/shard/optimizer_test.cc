// AdamW on shards equals a scalar AdamW on whole parameters, written here.

#include "sherd/autograd/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

const AdamWOptions kOptions = {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.3};
constexpr StepOptions kStep = {.learning_rate = 0.05, .grad_scale = 0.5};

// Loshchilov and Hutter 2019, algorithm 2, element by element.
class ScalarAdamW {
 public:
  explicit ScalarAdamW(Whole values) : values_(std::move(values)) {}
  void Step(const Whole& gradients, const Module& model) {
    for (const auto& [name, gradient] : gradients) {
      State& state = states_[name];
      state.m.resize(gradient.size());
      state.v.resize(gradient.size());
      const double t = ++state.t;
      const double decay = RankOf(model, name) >= 2 ? kOptions.weight_decay : 0.0;
      std::vector<double>& p = values_[name];
      for (size_t i = 0; i < gradient.size(); ++i) {
        const double g = gradient[i] * kStep.grad_scale;
        state.m[i] = kOptions.beta1 * state.m[i] + (1 - kOptions.beta1) * g;
        state.v[i] = kOptions.beta2 * state.v[i] + (1 - kOptions.beta2) * g * g;
        const double m = state.m[i] / (1 - std::pow(kOptions.beta1, t));
        const double v = state.v[i] / (1 - std::pow(kOptions.beta2, t));
        p[i] -= kStep.learning_rate * (m / (std::sqrt(v) + kOptions.eps) + decay * p[i]);
      }
    }
  }
  const Whole& values() const { return values_; }

 private:
  struct State {
    int t = 0;
    std::vector<double> m;
    std::vector<double> v;
  };
  static int RankOf(const Module& model, const std::string& name) {
    for (const Parameter& parameter : model.parameters()) {
      if (parameter.name() == name) return parameter.shape().rank();
    }
    return 0;
  }
  Whole values_;
  std::map<std::string, State> states_;
};

enum class Units { kNone, kOfBlocks, kOne };

void ExpectScalarSteps(World& world, Units units) {
  ShardModel model;
  model.block(2).up.weight().set_requires_grad(false);
  if (units == Units::kOfBlocks) ShardAll(model, world.mesh(), Sums());
  if (units == Units::kOne) FullyShard(model, world.mesh(), Sums());
  Initialize(model, world.device(), 1);
  ProcessGroup* group = units != Units::kNone ? &world.group() : nullptr;
  ScalarAdamW want(ValuesOf(model, group));
  AdamW optimizer(model.parameters(), kOptions);
  Tape tape;
  // Blocks rest in some steps: their step counts, and so their bias corrections, fall behind.
  const std::vector<std::vector<int>> orders = {{0, 1, 2}, {0}, {0, 1, 2, 1}, {1}};
  for (size_t s = 0; s < orders.size(); ++s) {
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank(), s), orders[s])));
      tape.Reset();
    }
    const Whole gradients = GradientsOf(model, group, false);
    const int64_t version = model.head.weight().version();
    optimizer.Step(kStep);
    EXPECT_GT(model.head.weight().version(), version);
    want.Step(gradients, model);
    ExpectClose(ValuesOf(model, group), want.values(), 1e-13);
    ExpectClose(GradientsOf(model, group, false), gradients, 0.0);
    for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
  }
}

TEST(AdamWOnShards, EqualsTheScalarAlgorithm) {
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    for (Units units : {Units::kOfBlocks, Units::kOne}) {
      RunRanks(ranks, [&](World& world) { ExpectScalarSteps(world, units); });
    }
  }
}

TEST(AdamWOnShards, EqualsTheScalarAlgorithmWithoutUnits) {
  RunRanks(1, [](World& world) { ExpectScalarSteps(world, Units::kNone); });
}

class Nothing : public OptimizerStateVisitor {
 public:
  void OnTensor(const Parameter&, std::string_view, const Tensor&) override {}
  void OnCount(const Parameter&, std::string_view, int64_t&) override {}
};

// Unfrozen before the first step, but after the others have their state; or after two steps.
void ExpectScalarStepsUnfrozenAt(World& world, uint64_t first) {
  ShardModel model(1);
  const Parameter late = model.block(0).up.weight();
  FullyShard(model, world.mesh(), Sums());
  Initialize(model, world.device(), 1);
  late.set_requires_grad(false);  // it keeps its place between the others
  ScalarAdamW want(ValuesOf(model, &world.group()));
  AdamW optimizer(model.parameters(), kOptions);
  Nothing nothing;
  optimizer.VisitState(nothing);
  Tape tape;
  for (uint64_t step = 0; step < 4; ++step) {
    late.set_requires_grad(step >= first);
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank(), step), {0})));
      tape.Reset();
    }
    const Whole gradients = GradientsOf(model, &world.group(), false);
    EXPECT_EQ(gradients.count(late.name()), step >= first ? 1u : 0u);
    optimizer.Step(kStep);
    want.Step(gradients, model);
    ExpectClose(ValuesOf(model, &world.group()), want.values(), 1e-13);
    for (const Parameter& parameter : model.parameters()) parameter.ClearGrad();
  }
}

TEST(AdamWOnShards, AParameterThatIsUnfrozenLaterStartsFromZeroMoments) {
  for (int ranks : {1, 2}) {
    for (uint64_t first : {0, 2}) {
      RunRanks(ranks, [&](World& world) { ExpectScalarStepsUnfrozenAt(world, first); });
    }
  }
}

TEST(AdamWOnShards, ParametersWithoutGradientStayAndKeepTheirVersion) {
  RunRanks(1, [](World& world) {
    ShardModel model(2);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    const Whole before = ValuesOf(model, nullptr);
    AdamW optimizer(model.parameters(), kOptions);
    const int64_t version = model.block(1).up.weight().version();
    Tape tape;
    const Recording on(tape);
    tape.Backward(Energy(model(InputOf(world.device(), 0), {0})));
    optimizer.Step(kStep);
    const Whole after = ValuesOf(model, nullptr);
    EXPECT_EQ(after.at("block1.up.weight"), before.at("block1.up.weight"));
    EXPECT_NE(after.at("block0.up.weight"), before.at("block0.up.weight"));
    EXPECT_EQ(model.block(1).up.weight().version(), version);
  });
}

TEST(AdamWOnShards, MomentsAreCountedAsOptimizerMemory) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    AdamW optimizer(model.parameters(), kOptions);
    Tape tape;
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0})));
    }
    optimizer.Step(kStep);
    const MemoryStats stats = world.device().allocator().stats();
    EXPECT_EQ(stats[MemoryCategory::kOptimizer].current_bytes,
              2 * stats[MemoryCategory::kParameterShard].current_bytes);
  });
}

TEST(AdamWOnShards, RefusesNoParameters) {
  EXPECT_TRUE(Contains(ErrorOf([] { AdamW optimizer({}, kOptions); }), "no parameters"));
}

}  // namespace
}  // namespace sherd::testing
