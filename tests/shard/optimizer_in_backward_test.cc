// Units stepped inside the backward end where units stepped after it do, and hold less.

#include "sherd/shard/optimizer_in_backward.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/ops/reduce.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

struct Setting {
  int ranks = 1;
  int inside = 1;
  Stage stage = kZero3;
  bool checkpoint = false;
  bool in_backward = false;
  int64_t micro_batches = 2;
};

struct Trained {
  Whole values;
  std::vector<double> norms;
  int64_t peak_gradient_shards = 0;
  int64_t last_gradient_shards = 0;
};

std::unique_ptr<Optimizer> MakeAdamW(std::vector<Parameter> parameters) {
  return std::make_unique<AdamW>(std::move(parameters));
}

// Three windows of two micro-batches; block 0 is called twice, block 1 not at all in the second
// window, and in the first not on rank 1.
Trained Train(World& world, const Setting& setting) {
  ShardModel model;
  if (setting.checkpoint) Checkpoint(model.block(0));
  ShardAll(model, world.MakeMesh(setting.inside), {.stage = setting.stage});
  Initialize(model, world.device(), 1);
  std::optional<OptimizerInBackward> in_backward;
  std::unique_ptr<Optimizer> after;
  if (setting.in_backward) {
    in_backward.emplace(model, MakeAdamW);
  } else {
    after = MakeAdamW(model.parameters());
  }
  Optimizer& optimizer = setting.in_backward ? static_cast<Optimizer&>(*in_backward) : *after;
  Accumulation accumulation(model, {.micro_batches = setting.micro_batches,
                                    .in_backward = in_backward ? &*in_backward : nullptr});
  Trained run;
  world.device().allocator().ResetPeaks();
  uint64_t next = 0;
  for (int step = 0; step < 3; ++step) {
    const double rate = 0.1 / (step + 1);
    if (in_backward) in_backward->set_learning_rate(rate);
    auto loader = [&]() -> std::optional<uint64_t> { return next++; };
    auto window = accumulation.Next(loader, [](uint64_t) { return int64_t{3}; });
    if (in_backward) in_backward->set_learning_rate(55.0);  // of the next window
    Tape tape;
    for (const uint64_t batch : *window) {
      const Recording on(tape);
      const Variable x = InputOf(world.device(), world.rank(), batch);
      std::vector<int> order = {0, 1, 2, 0};
      if (step == 0 && world.rank() == 1) order[1] = -2;
      if (step == 1) order = {0, 2, 0};
      const Variable y = model(x, order);
      window->Backward({Energy(y), 3});
    }
    const StepResult result = window->Finish(optimizer, in_backward ? 99.0 : rate);
    EXPECT_EQ(result.learning_rate, rate);
    run.norms.push_back(result.grad_norm);
  }
  const MemoryStats stats = world.device().allocator().stats();
  run.peak_gradient_shards = stats[MemoryCategory::kGradientShard].peak_bytes;
  run.last_gradient_shards = stats[MemoryCategory::kGradientShard].current_bytes;
  run.values = ValuesOf(model, world.size() > 1 ? &world.group() : nullptr);
  return run;
}

TEST(OptimizerInBackward, EndsWhereTheSameStepsAfterTheBackwardEnd) {
  for (const Setting& given : {Setting{}, Setting{1, 1, kZero3, true}, Setting{2, 2},
                               Setting{2, 2, kZero2}, Setting{3, 3, kZero3, true}, Setting{4, 2},
                               Setting{4, 2, kHybridOptimizer}, Setting{2, 2, kDataParallel}}) {
    SCOPED_TRACE(absl::StrCat(given.ranks, " ranks, ", given.inside, " inside"));
    RunRanks(given.ranks, [&](World& world) {
      Setting setting = given;
      const Trained after = Train(world, setting);
      setting.in_backward = true;
      const Trained inside = Train(world, setting);
      EXPECT_EQ(inside.values, after.values) << "bits";
      for (size_t k = 0; k < after.norms.size(); ++k) {
        EXPECT_NEAR(inside.norms[k] / after.norms[k], 1.0, 1e-12);
      }
      EXPECT_EQ(inside.last_gradient_shards, 0);
    });
  }
}

// With more micro-batches all sums are there before the last one's backward begins.
TEST(OptimizerInBackward, OfOneMicroBatchNeverHoldsAllGradients) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [&](World& world) {
      Setting setting{.ranks = ranks, .inside = ranks, .micro_batches = 1};
      const int64_t after = Train(world, setting).peak_gradient_shards;
      setting.in_backward = true;
      EXPECT_LT(Train(world, setting).peak_gradient_shards, after);
    });
  }
}

void ExpectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' does not say '" << part << "'";
}

TEST(OptimizerInBackward, RefusesWhatNeedsAllGradientsFirst) {
  RunRanks(1, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh());
    Initialize(model, world.device(), 1);
    OptimizerInBackward optimizer(model, MakeAdamW);
    LossScaler scaler;
    const auto text = [](const std::function<void()>& body) -> std::string {
      try {
        body();
      } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    ExpectHas(text([&] { Accumulation(model, {.scaler = &scaler, .in_backward = &optimizer}); }),
              "loss scaler");
    ExpectHas(text([&] {
                Accumulation(model, {.sync = WindowSync::kCaller, .in_backward = &optimizer});
              }),
              "kCaller");
    Accumulation accumulation(model, {.in_backward = &optimizer});
    bool first = true;
    auto loader = [&]() -> std::optional<int> {
      return std::exchange(first, false) ? std::optional(0) : std::nullopt;
    };
    auto window = accumulation.Next(loader, [](int) { return int64_t{1}; });
    Tape tape;
    const Recording on(tape);
    window->Backward({Energy(model(InputOf(world.device(), 0), {0, 1, 2})), 1});
    ExpectHas(text([&] { window->Finish(optimizer, 1e-3, {.clip = 1.0}); }), "clipping");
    ExpectHas(text([&] { window->Finish(optimizer, 1e-3, {.norm = NormType::kInf}); }),
              "other than kTwo");
    AdamW other(model.parameters());
    ExpectHas(text([&] { window->Finish(other, 1e-3); }), "give Finish that one");
    EXPECT_EQ(text([&] { window->Finish(optimizer, 1e-3); }), "no error");
    ExpectHas(text([&] {
                OptimizerInBackward(
                    model, [](std::vector<Parameter>) { return std::unique_ptr<Optimizer>(); });
              }),
              "returned no optimizer");
  });
}

}  // namespace
}  // namespace sherd::testing
