// Plans of small models by hand, of every stage by hand, and of Llama 70B on 512 ranks.

#include "sherd/shard/plan.h"
#include "sherd/shard/plan_model.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/nn/layers.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

PlanUnit UnitOfElems(const std::string& name, int64_t elems) {
  PlanUnit unit;
  unit.name = name;
  unit.parameters.push_back({"weight", Shape{elems}});
  return unit;
}

// Two blocks of 8 f32 elements on 2 ranks: a gather or a reduction sends 16 bytes, in 1 second.
// Forward compute is 3 seconds for each block; the root has nothing.
PlanModel TwoBlocks(int prefetch) {
  PlanModel model;
  for (const char* name : {"block0", "block1"}) {
    PlanUnit block = UnitOfElems(name, 8);
    block.forward_flops = 3.0;
    block.prefetch = prefetch;
    model.blocks.push_back(block);
  }
  model.root.prefetch = prefetch;
  return model;
}

PlanOptions TwoRanks() {
  return {.shard_ranks = 2, .flops_per_second = 1.0, .shard_link = {.bytes_per_second = 16.0}};
}

// Two small all-reduces: 3 slots before the step (1.5 seconds), 5 at its end (2.5).
TEST(PlanTest, TimeByHandWithPrefetch) {
  const Plan plan = MakePlan(TwoBlocks(1), TwoRanks());
  // Agree 1.5, gather 1, then 3 and 3; the second gather is hidden.
  EXPECT_DOUBLE_EQ(plan.forward.seconds, 8.5);
  EXPECT_DOUBLE_EQ(plan.forward.exposed_seconds, 2.5);
  EXPECT_DOUBLE_EQ(plan.forward.compute_seconds, 6.0);
  // Gather 1, then 6 and 6; the other gather and the first reduction are hidden.
  EXPECT_DOUBLE_EQ(plan.backward.seconds, 13.0);
  EXPECT_DOUBLE_EQ(plan.backward.exposed_seconds, 1.0);
  // The last reduction 1, the verdict 2.5.
  EXPECT_DOUBLE_EQ(plan.step.seconds, 3.5);
  EXPECT_DOUBLE_EQ(plan.step_seconds(), 25.0);
}

TEST(PlanTest, TimeByHandWithoutPrefetch) {
  const Plan plan = MakePlan(TwoBlocks(0), TwoRanks());
  EXPECT_DOUBLE_EQ(plan.forward.seconds, 9.5);
  // The second gather waits behind the first reduction: 1 + 6 + 2 + 6.
  EXPECT_DOUBLE_EQ(plan.backward.seconds, 15.0);
  EXPECT_DOUBLE_EQ(plan.step.seconds, 3.5);
}

TEST(PlanTest, ComputeThatIsShorterThanItsGatherWaitsForIt) {
  PlanOptions options = TwoRanks();
  options.flops_per_second = 3.0 / 0.25;  // a forward of 0.25 s, a backward of 0.5 s
  const Plan plan = MakePlan(TwoBlocks(1), options);
  // Gathers end at 2.5 and 3.5; then the last block's compute.
  EXPECT_DOUBLE_EQ(plan.forward.seconds, 3.75);
  // Gathers end at 1 and 2, compute at 1.5 and 2.5. The first reduction begins when the link is
  // free, at 2, and ends at 3; the other one at 4.
  EXPECT_DOUBLE_EQ(plan.backward.seconds, 2.5);
  EXPECT_DOUBLE_EQ(plan.step.seconds, 1.5 + 2.5);
}

TEST(PlanTest, BackwardWaitsWhileMoreThanOneReductionIsInFlight) {
  PlanModel model = TwoBlocks(1);
  for (PlanUnit& block : model.blocks) {
    block.reshard_after_forward = false;
    block.forward_flops = 0.0;
  }
  model.blocks.push_back(model.blocks[0]);
  const Plan plan = MakePlan(model, TwoRanks());
  // Nothing is gathered, nothing computed: the third block waits for the first reduction.
  EXPECT_DOUBLE_EQ(plan.backward.seconds, 1.0);
}

TEST(PlanTest, LatencyCountsForEachMessageOfTheRing) {
  PlanModel model;
  model.root = UnitOfElems("root", 8);
  const Plan plan =
      MakePlan(model, {.shard_ranks = 4, .shard_link = {.latency_seconds = 1.0 / 1024}});
  const double message = 1.0 / 1024;
  EXPECT_DOUBLE_EQ(plan.forward[EventOp::kAllGather].seconds, 3 * message);
  EXPECT_DOUBLE_EQ(plan.backward[EventOp::kReduceScatter].seconds, 3 * message);
  EXPECT_DOUBLE_EQ(plan.step[EventOp::kAllReduce].seconds, 6 * message);
}

TEST(PlanTest, RecomputeTakesAForwardMoreAndTokensGiveTheFlops) {
  PlanModel model;
  model.blocks.push_back(UnitOfElems("block", 10));
  model.blocks[0].recompute = true;
  const Plan plan = MakePlan(model, {.tokens = 5, .flops_per_second = 50.0});
  EXPECT_DOUBLE_EQ(plan.forward.compute_seconds, 2.0 * 10 * 5 / 50);
  EXPECT_DOUBLE_EQ(plan.backward.compute_seconds, 3 * 2.0 * 10 * 5 / 50);
}

TEST(PlanTest, MemoryByHand) {
  PlanModel model = TwoBlocks(1);
  model.root = UnitOfElems("root", 100);  // 400 bytes, padded by none on 2 ranks
  model.blocks[0].activation_bytes = 1000;
  model.blocks[1].activation_bytes = 2000;
  const Plan plan = MakePlan(model, TwoRanks());
  // Blocks of 64 bytes. A shard of 16 takes 64, one of 200 takes 256; gathered, 64 and 448.
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kParameterShard), 64 + 64 + 256);
  EXPECT_EQ(plan.init[MemoryCategory::kParameterShard], 64 + 64 + 256);
  EXPECT_EQ(plan.init.total_peak_bytes, 64 + 64 + 256);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kUnsharded), 448 + 64 + 64);
  // The root's, and a block's while another one's is reduced.
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradient), 448 + 64 + 64);
  EXPECT_EQ(plan.forward[MemoryCategory::kGradient], 0);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradientShard), 64 + 64 + 256);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kOptimizer), 2 * (64 + 64 + 256));
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kActivation), 3000);
  // All shards, then in backward: the root whole, both blocks gathered, the root's gradient and
  // the last block's, all activations.
  EXPECT_EQ(plan.total_peak_bytes(), 4 * 384 + 448 + 64 + 64 + 448 + 64 + 3000);
  EXPECT_EQ(plan.parameters, 116);
}

TEST(PlanTest, EachCallGathersAndReducesAndEachMicroBatchAgain) {
  PlanModel model = TwoBlocks(1);
  model.blocks[1].calls = 3;
  PlanOptions options = TwoRanks();
  options.micro_batches = 2;
  const Plan plan = MakePlan(model, options);
  EXPECT_EQ(plan.forward[EventOp::kAllGather].count, 2 * (1 + 3));
  EXPECT_EQ(plan.forward[EventOp::kAllGather].bytes, 2 * (1 + 3) * 32);
  EXPECT_EQ(plan.forward[EventOp::kAllGather].sent_bytes, 2 * (1 + 3) * 16);
  EXPECT_EQ(plan.backward[EventOp::kAllGather].count, 2 * (1 + 3));
  EXPECT_EQ(plan.backward[EventOp::kReduceScatter].count, 2 * (1 + 3));
  EXPECT_EQ(plan.step[EventOp::kAllReduce].count, 1);
}

TEST(PlanTest, OneRankHoldsEverythingOnceAndSendsNothing) {
  PlanModel model;
  model.root = UnitOfElems("root", 16);
  const Plan plan = MakePlan(model, {});
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kParameterShard), 64);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kUnsharded), 0);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradient), 0);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradientShard), 64);
  for (const PlanPhase* phase : {&plan.forward, &plan.backward, &plan.step}) {
    for (const PlanCollectives& c : phase->collectives) EXPECT_EQ(c.count, 0);
  }
}

TEST(PlanTest, FrozenParametersAreGatheredAndNeverReduced) {
  PlanModel model;
  model.root = UnitOfElems("root", 32);
  model.root.parameters[0].trainable = false;
  const Plan plan = MakePlan(model, {.shard_ranks = 2});
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kUnsharded), 128);
  EXPECT_EQ(plan.forward[EventOp::kAllGather].count, 1);
  EXPECT_EQ(plan.backward[EventOp::kReduceScatter].count, 0);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradient), 0);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradientShard), 0);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kOptimizer), 0);
}

// Two dtypes are two segments: two collectives each time.
TEST(PlanTest, PrecisionsByHand) {
  PlanModel model;
  model.root = UnitOfElems("root", 64);
  model.root.parameters.push_back({"table", Shape{64}, DType::kF64});
  model.root.precision = {.parameters = DType::kBF16, .reduce = DType::kF16};
  model.root.reshard_after_forward = true;
  const Plan plan = MakePlan(model, {.shard_ranks = 2, .optimizer_dtype = DType::kF32});
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kParameterShard), 128 + 256);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kUnsharded), 128 + 128);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradient), 256 + 512);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kOptimizer), 2 * (128 + 128));
  EXPECT_EQ(plan.forward[EventOp::kAllGather].count, 2);
  EXPECT_EQ(plan.forward[EventOp::kAllGather].bytes, 128 + 128);
  EXPECT_EQ(plan.backward[EventOp::kAllGather].count, 2);
  EXPECT_EQ(plan.backward[EventOp::kReduceScatter].bytes, 128 + 128);
}

struct StageFigures {
  Stage stage;
  int64_t values, copy, gradient, sums, state;  // bytes held
  int64_t gathers, scatters, all_reduces;       // bytes of a step's whole buffers
};

// 1024 f32 elements on a mesh of 4 x 2. The pieces that the optimizer updates lie inside what is
// kept above them.
TEST(PlanTest, StagesByHand) {
  const StageFigures cases[] = {
      // Nothing is cut: one all-reduce for each axis, of what backward wrote.
      {kDataParallel, 4096, 0, 0, 4096, 8192, 0, 0, 2 * 4096},
      // The whole, refreshed once; whole sums, and their piece.
      {kZero1, 4096, 0, 0, 4096 + 1024, 2048, 4096, 4096, 1024},
      {kZero2, 4096, 0, 4096, 1024, 2048, 4096, 4096, 1024},
      {kZero3, 1024, 4096, 4096, 1024, 2048, 2 * 4096, 4096, 1024},
      // A rank's piece; two axes in the first gather and in the reduction.
      {kHybridOptimizer, 1024, 4096, 4096, 1024 + 512, 1024, 1024 + 2 * 4096, 4096 + 1024, 0},
      {kZero3Everywhere, 512, 4096, 4096, 512, 1024, 2 * (1024 + 4096), 4096 + 1024, 0},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    const StageFigures& want = cases[i];
    PlanModel model;
    model.blocks.push_back(UnitOfElems("block", 1024));
    model.blocks[0].stage = want.stage;
    const Plan plan = MakePlan(model, {.shard_ranks = 4, .replicate_ranks = 2});
    EXPECT_EQ(plan.ranks, 8);
    EXPECT_EQ(plan.peak_bytes(MemoryCategory::kParameterShard), want.values);
    EXPECT_EQ(plan.peak_bytes(MemoryCategory::kUnsharded), want.copy);
    EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradient), want.gradient);
    EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradientShard), want.sums);
    EXPECT_EQ(plan.peak_bytes(MemoryCategory::kOptimizer), want.state);
    EXPECT_EQ(plan.forward[EventOp::kAllGather].bytes + plan.backward[EventOp::kAllGather].bytes,
              want.gathers);
    EXPECT_EQ(plan.backward[EventOp::kReduceScatter].bytes, want.scatters);
    EXPECT_EQ(plan.backward[EventOp::kAllReduce].bytes, want.all_reduces);
  }
}

TEST(PlanTest, OnlyTheLastMicroBatchSumsOverReplicas) {
  PlanModel model;
  model.root = UnitOfElems("root", 1024);
  const Plan plan = MakePlan(model, {.shard_ranks = 2, .replicate_ranks = 2, .micro_batches = 3});
  EXPECT_EQ(plan.backward[EventOp::kReduceScatter].count, 3);
  EXPECT_EQ(plan.backward[EventOp::kAllReduce].count, 1);
}

// The first call's sums become the done ones, those of the others are added: the third call has its
// own beside them while the second's are on their way.
TEST(PlanTest, CallsOfALastMicroBatchHoldTheirSumsUntilTheyAreAdded) {
  PlanModel model;
  model.blocks.push_back(UnitOfElems("block", 1024));
  model.blocks[0].calls = 3;
  const Plan plan = MakePlan(model, {.shard_ranks = 2, .replicate_ranks = 2});
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradientShard), 3 * 2048);
}

TEST(PlanTest, EachAxisHasItsLink) {
  PlanModel model;
  model.root = UnitOfElems("root", 1024);
  model.root.stage = kZero3Everywhere;
  const PlanOptions options = {.shard_ranks = 2,
                               .replicate_ranks = 2,
                               .shard_link = {.bytes_per_second = 2048},
                               .replicate_link = {.bytes_per_second = 512}};
  // 1024 bytes to the other replica, then 2048 to the other half.
  EXPECT_DOUBLE_EQ(MakePlan(model, options).forward[EventOp::kAllGather].seconds, 2.0 + 1.0);
  model.root.stage = kZero3;
  EXPECT_DOUBLE_EQ(MakePlan(model, options).forward[EventOp::kAllGather].seconds, 1.0);
}

// The public configuration: 80 layers of 8192 channels, 64 heads of 128 and 8 for keys, ffn 28672,
// vocabulary 128256, embedding and head apart.
PlanModel Llama70B() {
  constexpr int64_t kChannels = 8192;
  constexpr int64_t kKeys = 8 * 128;
  constexpr int64_t kHidden = 28672;
  constexpr int64_t kVocabulary = 128256;
  PlanUnit block;
  block.precision = kBf16;
  block.recompute = true;
  block.parameters = {{"wq", Shape{kChannels, kChannels}}, {"wk", Shape{kKeys, kChannels}},
                      {"wv", Shape{kKeys, kChannels}},     {"wo", Shape{kChannels, kChannels}},
                      {"gate", Shape{kHidden, kChannels}}, {"up", Shape{kHidden, kChannels}},
                      {"down", Shape{kChannels, kHidden}}, {"attention_norm", Shape{kChannels}},
                      {"ffn_norm", Shape{kChannels}}};
  PlanModel model;
  model.root = block;
  for (int layer = 0; layer < 80; ++layer) {
    block.name = "layer" + std::to_string(layer);
    model.blocks.push_back(block);
  }
  model.root.parameters = {{"embedding", Shape{kVocabulary, kChannels}},
                           {"norm", Shape{kChannels}},
                           {"head", Shape{kVocabulary, kChannels}}};
  model.root.recompute = false;
  return model;
}

TEST(PlanTest, Llama70BOn512Ranks) {
  const PlanModel model = Llama70B();
  const Plan plan = MakePlan(
      model,
      {.shard_ranks = 512, .tokens = 8192, .flops_per_second = 400e12, .shard_link = {50e9, 0.0}});
  constexpr int64_t kLayer = 855654400;
  constexpr int64_t kRoot = 2 * 128256 * int64_t{8192} + 8192;
  constexpr int64_t kAll = 70553706496;
  EXPECT_EQ(80 * kLayer + kRoot, kAll);
  EXPECT_EQ(plan.parameters, kAll);
  // All sizes are multiples of 512 ranks and of 64 bytes.
  constexpr int64_t kShard = kAll / 512 * 4;
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kParameterShard), kShard);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradientShard), kShard);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kOptimizer), 2 * kShard);
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kUnsharded), 2 * (kRoot + 2 * kLayer));
  EXPECT_EQ(plan.peak_bytes(MemoryCategory::kGradient), 4 * (kRoot + 2 * kLayer));
  EXPECT_EQ(plan.forward[EventOp::kAllGather].count, 81);
  EXPECT_EQ(plan.backward[EventOp::kAllGather].count, 80);
  EXPECT_EQ(plan.backward[EventOp::kReduceScatter].count, 81);
  EXPECT_EQ(plan.forward[EventOp::kAllGather].bytes, 2 * kAll);
  EXPECT_EQ(plan.backward[EventOp::kAllGather].bytes, 2 * 80 * kLayer);
  EXPECT_EQ(plan.backward[EventOp::kReduceScatter].bytes, 4 * kAll);
  // Compute: 2 flops for each parameter and token forward, 4 backward and 2 again in the layers.
  const double flops = 6.0 * kAll * 8192 + 2.0 * 80 * kLayer * 8192;
  EXPECT_NEAR(plan.forward.compute_seconds + plan.backward.compute_seconds, flops / 400e12, 1e-6);
  // A layer's gather is 34 ms at 50 GB/s, its forward 35 ms: forward waits for the root and the
  // first layer alone. Backward computes 105 ms for each layer and sends for 103: it waits for the
  // last layer's gather alone.
  const double root_gather = 2.0 * kRoot * 511 / 512 / 50e9;
  const double layer_gather = 2.0 * kLayer * 511 / 512 / 50e9;
  EXPECT_NEAR(plan.forward.exposed_seconds, root_gather + layer_gather, 1e-4);
  EXPECT_NEAR(plan.backward.exposed_seconds, layer_gather, 1e-4);
  EXPECT_NE(plan.ToString().find("70553706496 parameters on 512 ranks"), std::string::npos);
}

TEST(PlanTest, UnitsOfAModuleAreThoseOfFullyShard) {
  struct Model : Module {
    Model() : first(3, 5, Initializer::Normal(1.0)), second(5, 2, Initializer::Normal(1.0)) {
      RegisterModule("first", first);
      RegisterModule("second", second);
      scale = RegisterParameter("scale", {7}, Initializer::Normal(1.0), DType::kF64);
    }
    LinearLayer first, second;
    Parameter scale;
  };
  Model model;  // without memory
  const Module* blocks[] = {&model.second};
  const PlanModel plan = PlanModelOf(model, blocks, {.prefetch = 3});
  ASSERT_EQ(plan.blocks.size(), 1u);
  EXPECT_EQ(plan.blocks[0].name, "second");
  EXPECT_EQ(plan.blocks[0].prefetch, 3);
  ASSERT_FALSE(plan.blocks[0].parameters.empty());
  EXPECT_EQ(plan.blocks[0].parameters[0].shape, (Shape{2, 5}));
  EXPECT_EQ(MakePlan(plan, {}).parameters, 3 * 5 + 5 * 2 + 7);
  // Rows of 5: the 2 of them take 3 ranks 15 elements, not 12.
  const auto rows = [](const Parameter& p) -> int64_t { return p.shape() == Shape{2, 5} ? 5 : 1; };
  const auto sent = [](const PlanModel& plan) {
    return MakePlan(plan, {.shard_ranks = 3}).forward[EventOp::kAllGather].bytes;
  };
  EXPECT_EQ(sent(PlanModelOf(model, blocks, {}, rows)) - sent(plan), 3 * 4);
  const Module* strange[] = {&model};
  EXPECT_TRUE(Contains(ErrorOf([&] { PlanModelOf(model.first, strange); }), "not below the model"));
}

TEST(PlanTest, RefusesNonsense) {
  const auto error = [](PlanModel model, PlanOptions options) {
    return ErrorOf([&] { MakePlan(model, options); });
  };
  EXPECT_TRUE(Contains(error({}, {.shard_ranks = 0}), "0 x 1 ranks"));
  EXPECT_TRUE(Contains(error({}, {.micro_batches = 0}), "micro_batches"));
  EXPECT_TRUE(Contains(error({}, {.tokens = -1}), "tokens"));
  EXPECT_TRUE(Contains(error({}, {.replicate_link = {-1.0, 0.0}}), "replicate_link"));
  PlanModel model = TwoBlocks(1);
  model.blocks[1].calls = 0;
  EXPECT_TRUE(Contains(error(model, {}), "unit 'block1': calls"));
  model = TwoBlocks(-1);
  EXPECT_TRUE(Contains(error(model, {}), "unit 'block0': prefetch"));
  model = TwoBlocks(1);
  model.root.calls = 2;
  EXPECT_TRUE(Contains(error(model, {}), "the root is called once"));
}

}  // namespace
}  // namespace sherd::testing
