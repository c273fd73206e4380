// What policies keep and what is then computed again: exact counts for a Llama-like block.

#include "sherd/checkpoint/policy.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "tests/checkpoint/llama.h"

namespace sherd::testing {
namespace {

constexpr int kBlocks = 3;

void WrapAll(LlamaStack& model, const CheckpointOptions& options) {
  for (auto& block : model.blocks()) Checkpoint(*block, options);
}

// A step of kBlocks blocks; the counts, divided by the number of blocks.
struct PerBlock {
  int64_t kept = 0, repeated = 0, kept_bytes = 0;
  double flops = 0.0;
};
PerBlock Measure(const std::string& name, CheckpointOptions options) {
  const Device device = Device::Cpu();
  LlamaStack model(device, DType::kF64, kBlocks);
  options.stats = std::make_shared<CheckpointStats>();
  WrapAll(model, options);
  RunStep(model, device, DType::kF64);
  const CheckpointStats& s = *options.stats;
  EXPECT_EQ(s.calls, kBlocks);
  EXPECT_EQ(s.recomputes, kBlocks);
  EXPECT_EQ(s.ops, kBlocks * 20) << "views too";
  EXPECT_EQ(s.kept_bytes, 0) << "nothing is held after the step";
  std::printf("%-24s %s\n", name.c_str(), s.ToString().c_str());
  return {s.kept_ops / kBlocks, s.repeated_ops / kBlocks, s.peak_kept_bytes / kBlocks,
          s.repeated_flops / kBlocks};
}

// Sizes of a block in f64: B 2, T 5, C 6; qkv is [10, 10]: 3 heads of 2 numbers, one for keys and
// values.
constexpr int64_t kRows = 10;
constexpr double kFlopsQkv = 2.0 * kRows * 6 * 10;
constexpr double kFlopsAttention = 4.0 * 6 * (2 * 15);  // H D, causal pairs of query and key
constexpr double kFlopsOut = 2.0 * kRows * 6 * 6;

int64_t FfnOf() {
  const Device device = Device::Cpu();
  LlamaStack model(device, DType::kF64, 1);
  for (const Parameter& p : model.parameters()) {
    if (p.name() == "block0.down.weight") return p.shape()[1];
  }
  return -1;
}

TEST(Policy, WithoutEarlyStopExactlyOneForwardIsRepeated) {
  const PerBlock got = Measure("everything", {.early_stop = false});
  EXPECT_EQ(got.repeated, 14);
  EXPECT_EQ(got.kept, 0);
}

TEST(Policy, EarlyStopLeavesOutWhatNoBackwardReads) {
  // The last add, its dropout and the down projection under it.
  const PerBlock got = Measure("early stop", {});
  EXPECT_EQ(got.repeated, 11);
  EXPECT_EQ(got.kept, 0);
  const double gate_up = 2.0 * kRows * 6 * 2 * static_cast<double>(FfnOf());
  EXPECT_EQ(got.flops, kFlopsQkv + kFlopsAttention + kFlopsOut + gate_up);
}

TEST(Policy, KeepMatmulsRepeatsNone) {
  const PerBlock got = Measure("matmuls and attention", {.policy = KeepMatmuls()});
  EXPECT_EQ(got.flops, 0.0);
  // norm, two ropes, dropout, add, norm, silu_mul.
  EXPECT_EQ(got.repeated, 7);
  // qkv, attention, out, gate_up; the down projection's result is read by nobody.
  EXPECT_EQ(got.kept, 4);
  const int64_t attention = kRows * 6 + kRows * 3;  // and one number for each query and head
  EXPECT_EQ(got.kept_bytes, 8 * (kRows * 10 + attention + kRows * 6 + kRows * 2 * FfnOf()));
}

TEST(Policy, KeepKindsAndAPredicateOfTheUser) {
  const PerBlock norms = Measure("norms", {.policy = KeepKinds({OpKind::kNorm})});
  EXPECT_EQ(norms.kept, 2);
  EXPECT_EQ(norms.repeated, 9);
  std::vector<std::string> modules;
  std::vector<int64_t> ordinals;
  const PerBlock mine = Measure("a predicate", {.policy = [&](const OpInfo& op) {
                                  if (op.name != "linear") return false;
                                  modules.push_back(op.module->name());
                                  ordinals.push_back(op.ordinal);
                                  EXPECT_EQ(op.outputs.size(), 1u);
                                  EXPECT_EQ(op.bytes, op.outputs[0].shape.numel() * 8);
                                  return op.module->name() == "qkv";
                                }});
  EXPECT_EQ(mine.kept, 1);
  EXPECT_EQ(mine.kept_bytes, 8 * kRows * 10);
  // norm1 reads its own inner value, so it is computed all the same.
  EXPECT_EQ(mine.repeated, 10);
  ASSERT_EQ(modules.size(), 4u * kBlocks);
  EXPECT_EQ(modules[0], "qkv");
  EXPECT_EQ(modules[3], "down");
  EXPECT_EQ(std::vector<int64_t>(ordinals.begin(), ordinals.begin() + 4),
            (std::vector<int64_t>{1, 10, 14, 17}));
}

TEST(Policy, KeepAllRepeatsNothingAndHoldsWhatATapeWould) {
  const PerBlock got = Measure("everything kept", {.policy = KeepAll()});
  EXPECT_EQ(got.repeated, 0);
  EXPECT_EQ(got.kept, 9);
  // Op by op, in numbers a row: norm 6+1, qkv 10, ropes 6+2, attention 6+3, add 6, norm 6+1,
  // gate_up 2F, silu_mul F.
  EXPECT_EQ(got.kept_bytes, 8 * kRows * (6 + 1 + 10 + 6 + 2 + 6 + 3 + 6 + 6 + 1 + 3 * FfnOf()));
}

TEST(Policy, EveryPolicyGivesTheSameBits) {
  const std::vector<std::pair<const char*, KeepPolicy>> policies = {
      {"none", KeepNothing()},
      {"norms and random", KeepKinds({OpKind::kNorm, OpKind::kRandom})},
      {"elementwise", KeepKinds({OpKind::kElementwise})},
      {"matmuls", KeepMatmuls()},
      {"all", KeepAll()},
      {"every third", [](const OpInfo& op) { return op.ordinal % 3 == 0; }}};
  for (const auto& [name, policy] : policies) {
    for (bool early_stop : {true, false}) {
      for (bool twice : {false, true}) {
        SCOPED_TRACE(std::string(name) + (early_stop ? "" : ", no early stop") +
                     (twice ? ", two backwards" : ""));
        const CheckpointOptions options{.policy = policy, .early_stop = early_stop};
        ExpectSameBits([&](LlamaStack& m) { WrapAll(m, options); }, {.calls = 2, .twice = twice});
      }
    }
  }
}

TEST(Policy, RetainedValuesAreHeldUntilTheLastBackward) {
  const Device device = Device::Cpu();
  LlamaStack model(device, DType::kF64, 1);
  Checkpoint(*model.blocks()[0], {.policy = KeepMatmuls()});
  Initialize(model, device, 3);
  const Variable x = Variable::Leaf(NormalTensor(device, DType::kF64, {2, 5, 6}, 1));
  Tape tape;
  const Recording on(tape, {.samples = {0, 1}});
  const Variable y = Sum(model(x));
  const int64_t kept = StatsOf(*model.blocks()[0]).kept_bytes;
  EXPECT_GT(kept, 0);
  tape.Backward(y, 1.0, {.retain = true});
  EXPECT_EQ(StatsOf(*model.blocks()[0]).kept_bytes, kept);
  tape.Backward(y);
  EXPECT_EQ(StatsOf(*model.blocks()[0]).kept_bytes, 0);
  EXPECT_EQ(StatsOf(*model.blocks()[0]).recomputes, 2);
}

TEST(Policy, EveryNthModuleOfAList) {
  const Device device = Device::Cpu();
  for (int64_t n : {1, 2, 3, 5}) {
    LlamaStack model(device, DType::kF64, 5);
    CheckpointEvery(model.blocks(), n, {.policy = KeepMatmuls()});
    RunStep(model, device, DType::kF64);
    for (size_t i = 0; i < 5; ++i) {
      const int64_t want = static_cast<int64_t>(i) % n == 0 ? 1 : 0;
      EXPECT_EQ(StatsOf(*model.blocks()[i]).calls, want) << "block " << i << " of every " << n;
      EXPECT_EQ(StatsOf(*model.blocks()[i]).kept_ops, 4 * want);
    }
    EXPECT_TRUE(Contains(ErrorOf([&] { CheckpointEvery(model.blocks(), 0); }), "every 0-th"));
  }
  ExpectSameBits([](LlamaStack& m) { CheckpointEvery(m.blocks(), 2); });
}

TEST(Policy, SegmentOfBlocksAsAFunctionWithOptions) {
  const Device device = Device::Cpu();
  LlamaStack model(device, DType::kF64, 2);
  Initialize(model, device, 3);
  auto stats = std::make_shared<CheckpointStats>();
  Tensor want;
  for (bool checkpointed : {false, true}) {
    const Variable x = Variable::Leaf(NormalTensor(device, DType::kF64, {2, 5, 6}, 1));
    GridBlock* a = model.blocks()[0].get();
    GridBlock* b = model.blocks()[1].get();
    const auto both = [a, b](const Variable& in) { return (*b)((*a)(in)); };
    Tape tape;
    const Recording on(tape, {.samples = {0, 1}});
    const Variable y =
        checkpointed ? Checkpoint({.policy = KeepMatmuls(), .stats = stats}, both, x) : both(x);
    tape.Backward(Sum(Mul(y, y)));
    if (checkpointed) {
      EXPECT_TRUE(SameBits(x.grad(), want));
    } else {
      want = x.grad();
    }
  }
  EXPECT_EQ(stats->calls, 1);
  EXPECT_EQ(stats->kept_ops, 9);  // the first block's down projection is read now
  EXPECT_EQ(stats->repeated_flops, 0.0);
}

}  // namespace
}  // namespace sherd::testing
