// A window scales once, steps together on all ranks, and refuses what would be silently wrong.

#include "sherd/shard/window.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

struct Batch {
  uint64_t input = 0;
  int64_t items = 3;
};

// Notes the options of its steps and the gradients it was given.
class Noting final : public Optimizer {
 public:
  Noting(const ShardModel& model, ProcessGroup* group)
      : parameters_(model.parameters()), model_(model), group_(group) {}
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Step(const StepOptions& options) override {
    steps.push_back(options);
    gradients = GradientsOf(model_, group_);
  }
  std::vector<StepOptions> steps;
  Whole gradients;

 private:
  std::vector<Parameter> parameters_;
  const ShardModel& model_;
  ProcessGroup* group_;
};

int64_t ItemsOf(const Batch& batch) { return batch.items; }

// Gives out the batches, each once.
auto LoaderOf(std::vector<Batch> batches) {
  return [batches = std::move(batches), next = size_t{0}]() mutable -> std::optional<Batch> {
    return next < batches.size() ? std::optional(batches[next++]) : std::nullopt;
  };
}

void ExpectError(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
}

class Rank {
 public:
  explicit Rank(World& world, bool sharded = true) : world(world), model(2) {
    if (sharded) ShardAll(model, world.mesh());
    Initialize(model, world.device(), 1);
  }
  LossSum Loss(const Batch& batch) {
    return {Energy(model(InputOf(world.device(), static_cast<int>(batch.input)), {0, 1})),
            batch.items};
  }
  template <typename W>
  void Backward(W& window, const Batch& batch) {
    const Recording on(tape);
    window->Backward(Loss(batch));
  }
  World& world;
  ShardModel model;
  Tape tape;
};

double NormOf(const Whole& gradients) {
  double sum = 0.0;
  for (const auto& [name, values] : gradients) {
    for (double value : values) sum += value * value;
  }
  return std::sqrt(sum);
}

TEST(WindowTest, LossNormAndClippingAreThoseOfThePlainModel) {
  // 4 batches of 3, 1, 2 and 2 items, on 1, 2 and 4 ranks.
  const std::vector<Batch> all = {{0, 3}, {1, 1}, {2, 2}, {3, 2}};
  const double clip = 0.25;
  StepResult plain;
  Whole gradients;
  for (int ranks : {1, 2, 4}) {
    for (bool sharded : {false, true}) {
      if (!sharded && ranks > 1) continue;
      RunRanks(ranks, [&](World& world) {
        const size_t each = all.size() / static_cast<size_t>(ranks);
        const auto begin = all.begin() + static_cast<int64_t>(each) * world.rank();
        Rank rank(world, sharded);
        Accumulation accumulation(rank.model, {.micro_batches = static_cast<int64_t>(each)});
        Noting optimizer(rank.model, sharded ? &world.group() : nullptr);
        auto window =
            accumulation.Next(LoaderOf({begin, begin + static_cast<int64_t>(each)}), ItemsOf);
        ASSERT_TRUE(window.has_value());
        EXPECT_EQ(window->items(), 8);
        EXPECT_EQ(window->step(), 1);
        for (const Batch& batch : *window) rank.Backward(window, batch);
        const StepResult result = window->Finish(optimizer, 0.5, {.clip = clip});
        if (!sharded) {
          plain = result;
          gradients = optimizer.gradients;
          EXPECT_NEAR(result.grad_norm, NormOf(gradients), 1e-12 * result.grad_norm);
          EXPECT_GT(result.grad_norm, clip);
        }
        EXPECT_NEAR(result.loss, plain.loss, 1e-12 * plain.loss);
        EXPECT_NEAR(result.grad_norm, plain.grad_norm, 1e-12 * plain.grad_norm);
        EXPECT_EQ(result.items, 8);
        ASSERT_EQ(optimizer.steps.size(), 1u);
        EXPECT_EQ(optimizer.steps[0].learning_rate, 0.5);
        EXPECT_NEAR(optimizer.steps[0].grad_scale, clip / plain.grad_norm, 1e-5);
        ExpectClose(optimizer.gradients, gradients);
        for (const Parameter& p : rank.model.parameters()) EXPECT_FALSE(p.local_grad().defined());
      });
    }
  }
}

TEST(WindowTest, SmallNormsAreNotScaledAndNoClippingIsOne) {
  RunRanks(1, [](World& world) {
    Rank rank(world);
    Accumulation accumulation(rank.model);
    Noting optimizer(rank.model, &world.group());
    auto loader = LoaderOf({{0, 3}, {1, 3}});
    for (double clip : {1e9, 0.0}) {
      auto window = accumulation.Next(loader, ItemsOf);
      for (const Batch& batch : *window) rank.Backward(window, batch);
      window->Finish(optimizer, 1e-3, {.clip = clip});
      EXPECT_EQ(optimizer.steps.back().grad_scale, 1.0);
    }
    EXPECT_FALSE(accumulation.Next(loader, ItemsOf).has_value());
  });
}

TEST(WindowTest, LastWindowMayBeShorter) {
  RunRanks(2, [](World& world) {
    Rank rank(world);
    Accumulation accumulation(rank.model, {.micro_batches = 2});
    Noting optimizer(rank.model, &world.group());
    auto loader = LoaderOf({{0, 1}, {1, 1}, {2, 5}});
    std::vector<int64_t> items;
    while (auto window = accumulation.Next(loader, ItemsOf)) {
      for (const Batch& batch : *window) rank.Backward(window, batch);
      items.push_back(window->Finish(optimizer, 1e-3).items);
    }
    EXPECT_EQ(items, (std::vector<int64_t>{4, 10}));
  });
}

TEST(WindowTest, LossesThatReportOtherItemsAreRefusedOnAllRanks) {
  RunRanks(2, [](World& world) {
    Rank rank(world);
    Accumulation accumulation(rank.model);
    Noting optimizer(rank.model, &world.group());
    auto window = accumulation.Next(LoaderOf({{0, 3}}), ItemsOf);
    {
      const Recording on(rank.tape);
      LossSum loss = rank.Loss(*window->begin());
      if (world.rank() == 1) loss.items = 7;
      window->Backward(loss);
    }
    ExpectError(ErrorOf([&] { window->Finish(optimizer, 1e-3); }),
                {"[window.Finish]", "reported 10 items", "the counts said 6", "window_test.cc"});
    EXPECT_TRUE(optimizer.steps.empty());
    // What was accumulated is not taken into the next window.
    ExpectError(ErrorOf([&] {
                  accumulation.Next(LoaderOf({{0, 3}}), ItemsOf);
                }),
                {"still holds a gradient", "Recover()"});
    Recover(rank.model);
    EXPECT_TRUE(accumulation.Next(LoaderOf({{0, 3}}), ItemsOf).has_value());
  });
}

TEST(WindowTest, EveryMicroBatchHasOneBackward) {
  RunRanks(1, [](World& world) {
    Rank rank(world);
    Accumulation accumulation(rank.model, {.micro_batches = 2});
    Noting optimizer(rank.model, &world.group());
    auto window = accumulation.Next(LoaderOf({{0, 3}, {1, 3}}), ItemsOf);
    ExpectError(ErrorOf([&] { window->Backward(LossSum{}); }),
                {"[window.Backward]", "no Recording"});
    rank.Backward(window, {0, 3});
    ExpectError(ErrorOf([&] { window->Finish(optimizer, 1e-3); }), {"1 of 2 micro-batches"});
    rank.Backward(window, {1, 3});
    ExpectError(ErrorOf([&] { rank.Backward(window, {1, 3}); }), {"more often", "(2)"});
    EXPECT_EQ(ErrorOf([&] { window->Finish(optimizer, 1e-3); }), "no error");
    ExpectError(ErrorOf([&] { window->Finish(optimizer, 1e-3); }), {"second time"});
    EXPECT_EQ(optimizer.steps.size(), 1u);
  });
}

TEST(WindowTest, NormThatIsNotFiniteSkipsTheStepOnAllRanksAndTheNextIsRight) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      Rank rank(world);
      Accumulation accumulation(rank.model);
      AdamW optimizer(rank.model.parameters());
      const Whole before = ValuesOf(rank.model, &world.group());
      auto loader = LoaderOf({{0, 3}, {1, 3}});
      {
        auto window = accumulation.Next(loader, ItemsOf);
        const Recording on(rank.tape);
        LossSum loss = rank.Loss({0, 3});
        const double factor = world.rank() == 0 ? std::numeric_limits<double>::infinity() : 1.0;
        loss.value = Scale(loss.value, factor);
        window->Backward(loss);
        const StepResult result =
            window->Finish(optimizer, 1e-3, {.clip = 1.0, .non_finite = NonFinite::kSkip});
        EXPECT_TRUE(result.skipped);
        EXPECT_FALSE(std::isfinite(result.grad_norm));
      }
      EXPECT_EQ(ValuesOf(rank.model, &world.group()), before);
      auto window = accumulation.Next(loader, ItemsOf);
      rank.Backward(window, {1, 3});
      const StepResult result = window->Finish(optimizer, 1e-3, {.clip = 1.0});
      EXPECT_FALSE(result.skipped);
      EXPECT_TRUE(std::isfinite(result.grad_norm));
      EXPECT_NE(ValuesOf(rank.model, &world.group()), before);
    });
  }
}

TEST(WindowTest, FailedBackwardEndsTheWindowWithAndWithoutUnits) {
  for (bool sharded : {true, false}) {
    RunRanks(1, [&](World& world) {
      Rank rank(world, sharded);
      Accumulation accumulation(rank.model, {.micro_batches = 2});
      Noting optimizer(rank.model, nullptr);
      auto window = accumulation.Next(LoaderOf({{0, 3}, {1, 3}}), ItemsOf);
      rank.Backward(window, {0, 3});
      {
        const Recording on(rank.tape);
        const LossSum loss = rank.Loss({1, 3});
        rank.model.block(0).up.weight().MutableLocal();
        ExpectError(ErrorOf([&] { window->Backward(loss); }), {"'block0.up.weight' changed"});
        EXPECT_EQ(rank.tape.ops(), 0);
        ExpectError(ErrorOf([&] { window->Backward(loss); }),
                    {"earlier backward failed", "'block0.up.weight'", "Recover()"});
      }
      ExpectError(ErrorOf([&] { window->Finish(optimizer, 1e-3); }),
                  {"'block0.up.weight' changed", "Recover()"});
      ExpectError(ErrorOf([&] { accumulation.Next(LoaderOf({{0, 3}}), ItemsOf); }), {"Recover()"});
      Recover(rank.model);
      auto next = accumulation.Next(LoaderOf({{0, 3}}), ItemsOf);
      rank.Backward(next, {0, 3});
      EXPECT_EQ(ErrorOf([&] { next->Finish(optimizer, 1e-3); }), "no error");
    });
  }
}

TEST(WindowTest, TrainedParameterInNoUnitIsRefusedWithSeveralRanks) {
  RunRanks(2, [](World& world) {
    ShardModel model(1);
    FullyShard(model.block(0), world.mesh());
    ExpectError(ErrorOf([&] { Accumulation accumulation(model); }),
                {"[Accumulation]", "'head.weight'", "in no unit", "FullyShard"});
    model.head.weight().set_requires_grad(false);
    EXPECT_EQ(ErrorOf([&] { Accumulation accumulation(model); }), "no error");
    ExpectError(ErrorOf([&] { Accumulation accumulation(model, {.micro_batches = 0}); }),
                {"at least 1, got 0"});
  });
}

TEST(WindowTest, AnyRanksGradientCountsForTheStepOfAll) {
  // Rank 1 alone uses block 1; the optimizer of rank 0 must update its piece too.
  RunRanks(2, [](World& world) {
    ShardModel model(2);
    FullyShard(model, world.mesh());
    Initialize(model, world.device(), 1);
    Accumulation accumulation(model);
    AdamW optimizer(model.parameters());
    const Whole before = ValuesOf(model, &world.group());
    auto window = accumulation.Next(LoaderOf({{0, 1}}), ItemsOf);
    Tape tape;
    {
      const Recording on(tape);
      const std::vector<int> order =
          world.rank() == 1 ? std::vector<int>{1, 0} : std::vector<int>{0};
      window->Backward({Energy(model(InputOf(world.device(), world.rank()), order)), 1});
    }
    EXPECT_EQ(model.block(1).up.weight().local_grad().defined(), world.rank() == 1);
    window->Finish(optimizer, 0.1);
    const Whole after = ValuesOf(model, &world.group());
    const std::vector<double>& was = before.at("block1.up.weight");
    const std::vector<double>& is = after.at("block1.up.weight");
    for (size_t i = 0; i < was.size(); ++i) EXPECT_NE(is[i], was[i]) << "element " << i;
  });
}

}  // namespace
}  // namespace sherd::testing
