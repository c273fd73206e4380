// Models whose units have options of their own, drawn at random, as have the steps: which blocks
// run in which order, what is gathered, freed and synchronised when. Ten steps train as the plain
// model. A case that fails is named by its seed.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/core/random.h"
#include "tests/shard/training.h"

namespace sherd::testing {
namespace {

constexpr int kBlocks = 4;

// Numbers that are the same on all ranks.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  int Below(int n) {
    state_ = Mix64(state_, 13);
    return static_cast<int>(state_ % static_cast<uint64_t>(n));
  }
  bool Coin() { return Below(2) == 0; }

 private:
  uint64_t state_;
};

FullyShardOptions DrawOptions(Draws& draws, int inside) {
  FullyShardOptions options;
  if (draws.Coin()) options.reshard_after_forward = draws.Coin();
  options.reshard_after_backward = draws.Below(3) > 0;
  options.prefetch = draws.Below(3);
  const Stage stages[] = {kZero3,        kZero3,           kZero2,          kZero1,
                          kDataParallel, kHybridOptimizer, kZero3Everywhere};
  options.stage = stages[draws.Below(7)];
  options.reduce_once = draws.Coin();
  options.offload = draws.Below(4) == 0;
  const bool cut = options.stage.shard == kShardAll;
  if (draws.Coin() && cut && inside == 4) options.park = 2;
  return options;
}

// One micro-batch: the blocks that run, of which one at least.
std::vector<int> DrawOrder(Draws& draws) {
  std::vector<int> order;
  for (int k = 1 + draws.Below(5); k > 0; --k) order.push_back(draws.Below(kBlocks));
  return order;
}

// Several calls of the root before each backward, several backwards in a step.
using Orders = std::vector<std::vector<std::vector<int>>>;
Orders DrawStep(uint64_t seed, int step) {
  Draws draws(Mix64(seed, static_cast<uint64_t>(step)));
  Orders orders(static_cast<size_t>(1 + draws.Below(3)));
  for (auto& calls : orders) {
    for (int k = 1 + draws.Below(2); k > 0; --k) calls.push_back(DrawOrder(draws));
  }
  return orders;
}

Variable MicroLoss(ShardModel& model, const Device& device, int rank, int step,
                   const std::vector<std::vector<int>>& calls, size_t micro) {
  Variable sum;
  for (size_t k = 0; k < calls.size(); ++k) {
    const Variable x = InputOf(device, rank, static_cast<uint64_t>(step) * 10 + micro * 3 + k);
    const Variable loss = Energy(model(x, calls[k]));
    sum = sum.defined() ? Add(sum, loss) : loss;
  }
  return sum;
}

void DrawSharding(ShardModel& model, const Mesh& mesh, uint64_t seed) {
  Draws draws(seed);
  const int inside = mesh.shard_group().size();
  for (auto& block : model.blocks) {
    const int checkpoint = draws.Below(3);
    if (checkpoint == 1) Checkpoint(*block);
    FullyShard(*block, mesh, Sums(DrawOptions(draws, inside)));
    if (checkpoint == 2) Checkpoint(*block);
  }
  FullyShard(model, mesh, Sums(DrawOptions(draws, inside)));
  for (auto& block : model.blocks) {
    if (draws.Below(3) > 0) continue;
    const std::vector<Module*> next = {&model.block(draws.Below(kBlocks)),
                                       &model.block(draws.Below(kBlocks))};
    (draws.Coin() ? SetForwardPrefetch : SetBackwardPrefetch)(*block, next);
  }
}

// What a caller may do between backwards.
void DrawActions(ShardModel& model, Draws& draws) {
  const GradientSync syncs[] = {GradientSync::kNone, GradientSync::kCutOnly, GradientSync::kFull};
  SetGradientSync(model, syncs[draws.Below(3)]);
  for (auto& block : model.blocks) {
    if (draws.Coin()) SetGradientSync(*block, syncs[draws.Below(3)]);
    if (draws.Below(4) == 0) StartUnshard(*block);
    if (draws.Below(4) == 0) Reshard(*block);
    if (draws.Below(8) == 0) SetReshardAfterForward(*block, draws.Coin());
    if (draws.Below(8) == 0) SetReshardAfterBackward(*block, draws.Coin());
  }
}

Recipe<ShardModel> RecipeOf(uint64_t seed, int inside) {
  return {.make = [] { return std::make_unique<ShardModel>(kBlocks); },
          .shard = [=](ShardModel& model, const Mesh& mesh) { DrawSharding(model, mesh, seed); },
          .loss =
              [=](ShardModel& model, const Device& device, int rank, int step) {
                const Orders orders = DrawStep(seed, step);
                Variable sum;
                for (size_t micro = 0; micro < orders.size(); ++micro) {
                  const Variable loss = MicroLoss(model, device, rank, step, orders[micro], micro);
                  sum = sum.defined() ? Add(sum, loss) : loss;
                }
                return sum;
              },
          .run =
              [=](ShardModel& model, Tape& tape, const Device& device, int rank, int step) {
                const Orders orders = DrawStep(seed, step);
                Draws draws(Mix64(seed + 1, static_cast<uint64_t>(step)));
                double sum = 0.0;
                for (size_t micro = 0; micro < orders.size(); ++micro) {
                  DrawActions(model, draws);
                  const Recording on(tape);
                  const Variable loss = MicroLoss(model, device, rank, step, orders[micro], micro);
                  tape.Backward(loss);
                  sum += ScalarOf(loss);
                  tape.Reset();
                }
                FinishGradients(model);
                return sum;
              },
          .inside = inside};
}

void ExpectSeeds(int ranks, int inside, uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", ranks, " ranks, ", inside, " inside"));
    ExpectTrains(ranks, RecipeOf(seed, inside));
  }
}

TEST(FsdpRandom, OneRank) { ExpectSeeds(1, 1, 100, 20); }
TEST(FsdpRandom, TwoRanks) { ExpectSeeds(2, 2, 1200, 14); }
TEST(FsdpRandom, TwoCopies) { ExpectSeeds(2, 1, 300, 4); }
TEST(FsdpRandom, ThreeRanks) { ExpectSeeds(3, 3, 400, 3); }
TEST(FsdpRandom, FourRanks) { ExpectSeeds(4, 4, 500, 4); }
TEST(FsdpRandom, TwoCopiesOfTwoRanks) { ExpectSeeds(4, 2, 600, 5); }

}  // namespace
}  // namespace sherd::testing
