// Windows of several micro-batches, not as many on every rank, lead optimizers that look at more
// than one element or step before the backward ends where one rank without units does.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/shard/muon.h"
#include "sherd/shard/optimizer_in_backward.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int kSteps = 6;
constexpr double kRate = 0.02;
constexpr double kClip = 5.0;

enum class Kind { kMuon, kInBackward };

// How many micro-batches each rank has, and how they are summed.
struct Case {
  std::vector<int> held;
  int inside = 1;
  Stage stage = kZero3;
  WindowSync sync = WindowSync::kCutEach;
};

// One micro-batch: a sample's number, and which of its rank's it is.
struct Sample {
  int number = 0;
  int round = 0;
};

std::vector<Sample> SamplesOf(const std::vector<int>& held, int rank) {
  std::vector<Sample> samples;
  for (int round = 0; round < held[static_cast<size_t>(rank)]; ++round) {
    samples.push_back({8 * rank + round, round});
  }
  return samples;
}

// A block rests in some rounds, and in one step in all of them.
std::vector<int> OrderOf(int step, int round) {
  return step == 4 || (step + round) % 3 == 1 ? std::vector<int>{0} : std::vector<int>{0, 1};
}

AdamWOptions Decaying() { return {.eps = 1e-4, .weight_decay = 0.1}; }

struct Trained {
  Whole values;
  std::vector<double> losses;
};

// What a rank takes, and by what.
struct Windows {
  std::vector<Sample> samples;
  WindowSync sync = WindowSync::kCutEach;
  OptimizerInBackward* in_backward = nullptr;
  double clip = 0.0;
  ProcessGroup* group = nullptr;
};

// Six windows; units are stepped inside them where there is an optimizer for that.
Trained Train(ShardModel& model, const Device& device, Optimizer& optimizer,
              const Windows& windows) {
  Accumulation accumulation(
      model, {.micro_batches = 8, .sync = windows.sync, .in_backward = windows.in_backward});
  Tape tape;
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    if (windows.in_backward != nullptr) windows.in_backward->set_learning_rate(kRate / (1 + step));
    std::vector<uint64_t> indices(windows.samples.size());
    std::iota(indices.begin(), indices.end(), uint64_t{0});
    const StepResult result =
        RunWindow(accumulation, optimizer, tape, indices,
                  [&](uint64_t i) {
                    const Sample& sample = windows.samples[i];
                    return Energy(model(InputOf(device, sample.number, static_cast<uint64_t>(step)),
                                        OrderOf(step, sample.round)));
                  },
                  {.learning_rate = kRate / (1 + step), .clip = windows.clip});
    trained.losses.push_back(result.loss);
  }
  trained.values = ValuesOf(model, windows.group);
  return trained;
}

Trained TrainByMuon(ShardModel& model, World& world, Windows windows) {
  Muon muon(model, {.leave_to_adamw = NameContains("head"), .adamw = {.eps = 1e-4}});
  windows.clip = kClip;
  return Train(model, world.device(), muon, windows);
}

// One rank without units, which takes the micro-batches of all ranks.
Trained TrainPlain(World& world, Kind kind, const std::vector<int>& held) {
  ShardModel model(2);
  Initialize(model, world.device(), 1);
  Windows windows;
  for (int rank = 0; rank < static_cast<int>(held.size()); ++rank) {
    for (const Sample& sample : SamplesOf(held, rank)) windows.samples.push_back(sample);
  }
  if (kind == Kind::kMuon) return TrainByMuon(model, world, windows);
  AdamW adamw(model.parameters(), Decaying());
  return Train(model, world.device(), adamw, windows);
}

Trained TrainSharded(World& world, Kind kind, const Case& c) {
  ShardModel model(2);
  const Mesh mesh = world.MakeMesh(c.inside);
  for (auto& block : model.blocks) FullyShard(*block, mesh, {.stage = c.stage});
  FullyShard(model, mesh, {.stage = c.stage});
  Initialize(model, world.device(), 1);
  PoisonFreeMemory(world.device());
  Windows windows{
      .samples = SamplesOf(c.held, world.rank()), .sync = c.sync, .group = &world.group()};
  if (kind == Kind::kMuon) return TrainByMuon(model, world, windows);
  OptimizerInBackward optimizer(model, [](std::vector<Parameter> parameters) {
    return std::make_unique<AdamW>(std::move(parameters), Decaying());
  });
  windows.in_backward = &optimizer;
  return Train(model, world.device(), optimizer, windows);
}

void ExpectOneRanksTraining(Kind kind) {
  const std::pair<const char*, Stage> stages[] = {
      {"data parallel", kDataParallel}, {"zero 3", kZero3}, {"hybrid", kHybridOptimizer}};
  const std::pair<std::vector<int>, int> ranks[] = {
      {{3}, 1}, {{1, 3}, 2}, {{3, 0, 2}, 3}, {{2, 1, 3, 2}, 2}};
  for (const auto& [held, inside] : ranks) {
    Case c{.held = held, .inside = inside};
    Trained want;
    RunRanks(1, [&](World& world) { want = TrainPlain(world, kind, c.held); });
    for (const auto& [name, stage] : stages) {
      if (stage == kHybridOptimizer && inside == static_cast<int>(held.size())) continue;
      for (const WindowSync sync :
           {WindowSync::kCutEach, WindowSync::kFullEach, WindowSync::kLast}) {
        c.stage = stage;
        c.sync = sync;
        SCOPED_TRACE(absl::StrCat(absl::StrJoin(held, ","), " micro-batches, ", inside, " inside, ",
                                  name, ", sync ", static_cast<int>(sync)));
        RunRanks(static_cast<int>(held.size()), [&](World& world) {
          const Trained got = TrainSharded(world, kind, c);
          ASSERT_EQ(got.losses.size(), want.losses.size());
          for (size_t k = 0; k < want.losses.size(); ++k) {
            EXPECT_NEAR(got.losses[k], want.losses[k], 1e-9 * want.losses[k]) << "step " << k;
          }
          ExpectClose(got.values, want.values, 1e-9);
        });
      }
    }
  }
}

TEST(WindowOptimizers, MuonOverSeveralMicroBatches) { ExpectOneRanksTraining(Kind::kMuon); }

TEST(WindowOptimizers, StepsInBackwardOverSeveralMicroBatches) {
  ExpectOneRanksTraining(Kind::kInBackward);
}

// A block rested in the last micro-batch of a window: the next one does not step it early.
TEST(WindowOptimizers, NothingIsSteppedBeforeTheLastMicroBatch) {
  const std::vector<int> both = {0, 1};
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [&](World& world) {
      ShardModel model(2);
      ShardAll(model, world.mesh());
      Initialize(model, world.device(), 1);
      OptimizerInBackward optimizer(model, [](std::vector<Parameter> parameters) {
        return std::make_unique<AdamW>(std::move(parameters), Decaying());
      });
      Accumulation accumulation(
          model, {.micro_batches = 2, .sync = WindowSync::kFullEach, .in_backward = &optimizer});
      Tape tape;
      int next = 0;
      const auto loader = [&]() -> std::optional<int> { return next++; };
      for (int step = 0; step < 2; ++step) {
        auto window = accumulation.Next(loader, [](int) { return kItems; });
        const Whole before = ValuesOf(model, &world.group());
        for (const int i : *window) {
          EXPECT_EQ(ValuesOf(model, &world.group()), before) << "bits, micro-batch " << i;
          const Recording on(tape);
          const Variable x = InputOf(world.device(), world.rank(), static_cast<uint64_t>(i));
          window->Backward({Energy(model(x, i == 1 ? std::vector<int>{0} : both)), kItems});
        }
        window->Finish(optimizer, kRate);
      }
    });
  }
}

}  // namespace
}  // namespace sherd::testing
