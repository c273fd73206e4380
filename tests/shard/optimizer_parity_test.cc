// Ten steps of each optimizer, on every stage and mesh, lead where one rank without units does.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/sgd.h"
#include "sherd/shard/muon.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

enum class Kind { kAdamW, kSgd, kMuon };

std::unique_ptr<Optimizer> Make(Kind kind, Module& model) {
  switch (kind) {
    case Kind::kAdamW:
      return std::make_unique<AdamW>(model.parameters(),
                                     AdamWOptions{.eps = 1e-4, .weight_decay = 0.1});
    case Kind::kSgd:
      return std::make_unique<Sgd>(
          model.parameters(), SgdOptions{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
    case Kind::kMuon:
      return std::make_unique<Muon>(
          model, MuonOptions{.leave_to_adamw = NameContains("head"), .adamw = {.eps = 1e-4}});
  }
  return nullptr;
}

constexpr int kSteps = 10;

// Ten windows of the samples of `all` ranks, clipped; a block rests in some of them.
Whole Train(World& world, Kind kind, int all, const Stage* stage, int inside) {
  ShardModel model(2);
  if (stage != nullptr) {
    const Mesh mesh = world.MakeMesh(inside);
    for (auto& block : model.blocks) FullyShard(*block, mesh, {.stage = *stage});
    FullyShard(model, mesh, {.stage = *stage});
  }
  Initialize(model, world.device(), 1);
  PoisonFreeMemory(world.device());
  const std::unique_ptr<Optimizer> optimizer = Make(kind, model);
  Accumulation accumulation(model, {.micro_batches = all / world.size()});
  Tape tape;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<uint64_t> inputs;
    for (int rank = 0; rank < all; ++rank) {
      if (world.size() == 1 || rank == world.rank()) inputs.push_back(static_cast<uint64_t>(rank));
    }
    const std::vector<int> order = step % 3 == 1 ? std::vector<int>{0} : std::vector<int>{0, 1};
    RunWindow(
        accumulation, *optimizer, tape, inputs,
        [&](uint64_t i) {
          return Energy(model(
              InputOf(world.device(), static_cast<int>(i), static_cast<uint64_t>(step)), order));
        },
        {.learning_rate = kind == Kind::kSgd ? 0.01 : 0.02, .clip = 5.0});
  }
  return ValuesOf(model, stage != nullptr ? &world.group() : nullptr);
}

void ExpectOneRanksValues(Kind kind) {
  const std::pair<const char*, Stage> stages[] = {{"data parallel", kDataParallel},
                                                  {"zero 1", kZero1},
                                                  {"zero 2", kZero2},
                                                  {"zero 3", kZero3},
                                                  {"hybrid", kHybridOptimizer},
                                                  {"everywhere", kZero3Everywhere}};
  for (const auto& [ranks, inside] : {std::pair(2, 2), std::pair(3, 3), std::pair(4, 2)}) {
    const int all = ranks, cut = inside;
    Whole want;
    RunRanks(1, [&](World& world) { want = Train(world, kind, all, nullptr, 1); });
    RunRanks(all, [&](World& world) {
      for (const auto& [name, stage] : stages) {
        SCOPED_TRACE(absl::StrCat(name, ", ", world.size(), " ranks, ", cut, " inside"));
        ExpectClose(Train(world, kind, world.size(), &stage, cut), want, 1e-9);
      }
    });
  }
}

TEST(OptimizerParity, AdamW) { ExpectOneRanksValues(Kind::kAdamW); }
TEST(OptimizerParity, Sgd) { ExpectOneRanksValues(Kind::kSgd); }
TEST(OptimizerParity, Muon) { ExpectOneRanksValues(Kind::kMuon); }

}  // namespace
}  // namespace sherd::testing
