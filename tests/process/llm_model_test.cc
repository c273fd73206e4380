#include "llm/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "llm/batches.h"
#include "llm/evaluate.h"
#include "llm/generate.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/fully_shard.h"
#include "tests/support/ranks.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::Tensor;

constexpr LlamaConfig kSmall = {.vocabulary = 256,
                                .dim = 16,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .ffn = 24,
                                .positions = 12,
                                .tied = true,
                                .dropout = 0.0,
                                .dtype = DType::kF64};

std::vector<uint8_t> SomeText(int64_t bytes) {
  std::vector<uint8_t> text;
  for (int64_t i = 0; i < bytes; ++i) text.push_back(static_cast<uint8_t>((i * i + 7 * i) % 251));
  return text;
}

Tensor Tokens(const sherd::Device& device, const std::vector<int64_t>& ids) {
  return Tensor::FromHost<int64_t>(device, ids, {1, static_cast<int64_t>(ids.size())});
}

double LossOf(Llama& model, const Batch& batch) {
  return *sherd::CausalLmLoss()(model(batch.tokens), batch.labels).value.value().data<double>();
}

TEST(BatchLoaderTest, EveryRankAndMicroBatchTakesItsPartOfTheSameSamples) {
  const sherd::Device device = sherd::Device::Cpu();
  const std::vector<uint8_t> text = SomeText(1000);
  for (const int64_t micro_batches : {1, 2, 3, 5}) {
    for (const int size : {1, 2, 4, 13}) {
      Options options;
      options.batch = 12;
      options.micro_batches = micro_batches;
      options.seq = 8;
      options.steps = 2;
      const SampleOrder order(1000, 8, options.seed);
      std::vector<int> seen(24, 0);
      for (int rank = 0; rank < size; ++rank) {
        BatchLoader loader(text, options, rank, size, device);
        for (int64_t step = 0; step < 2; ++step) {
          int64_t held = 0;
          while (const std::optional<Batch> batch = loader()) {
            ++held;
            ASSERT_LE(static_cast<int64_t>(batch->samples.size()), loader.rows());
            const std::vector<int64_t> labels = batch->labels.ToHost<int64_t>();
            for (size_t row = 0; row < batch->samples.size(); ++row) {
              const int64_t sample = batch->samples[row];
              EXPECT_EQ(sample / 12, step);
              ++seen[static_cast<size_t>(sample)];
              EXPECT_EQ(labels[row * 8 + 7], text[static_cast<size_t>(order.Start(sample) + 8)]);
            }
          }
          EXPECT_LE(held, micro_batches);
        }
        EXPECT_FALSE(loader().has_value());
      }
      EXPECT_EQ(seen, std::vector<int>(24, 1)) << micro_batches << " " << size;
    }
  }
}

TEST(LlamaTest, CountsItsParametersByHand) {
  const sherd::Device device = sherd::Device::Cpu();
  // A block: norms 2 x 16, qkv (4 + 2 x 2) x 4 x 16, out 16 x 16, gate and up 2 x 24 x 16, down 24
  // x 16.
  const int64_t block = 32 + 512 + 256 + 768 + 384;
  Llama tied(kSmall, device);
  EXPECT_EQ(tied.size(), 256 * 16 + 2 * block + 16);
  LlamaConfig config = kSmall;
  config.tied = false;
  Llama untied(config, device);
  EXPECT_EQ(untied.size(), 2 * 256 * 16 + 2 * block + 16);
}

TEST(LlamaTest, BeginsByGuessingAndLooksAtThePastAlone) {
  const sherd::Device device = sherd::Device::Cpu();
  Llama model(kSmall, device);
  Initialize(model, device, 5);
  const std::vector<int64_t> before = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> after = before;
  after[4] = 99;
  const std::vector<double> a = model(Tokens(device, before)).value().ToHost<double>();
  const std::vector<double> b = model(Tokens(device, after)).value().ToHost<double>();
  ASSERT_EQ(a.size(), 6u * 256u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 4 * 256, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 4 * 256, a.end(), b.begin() + 4 * 256));
  // What came before matters, and so does its order: positions are part of the model.
  std::swap(after[0], after[1]);
  const std::vector<double> c = model(Tokens(device, after)).value().ToHost<double>();
  EXPECT_FALSE(std::equal(b.begin() + 5 * 256, b.end(), c.begin() + 5 * 256));

  const std::vector<uint8_t> text = SomeText(13);
  const std::vector<int64_t> starts = {0};
  EXPECT_NEAR(LossOf(model, MakeBatch(text, starts, 12, device)) / 12, std::log(256.0), 0.05);
}

class LlamaGradientTest : public testing::TestWithParam<bool> {};

TEST_P(LlamaGradientTest, AgreesWithDifferences) {
  const sherd::Device device = sherd::Device::Cpu();
  LlamaConfig config = kSmall;
  config.tied = GetParam();
  Llama model(config, device);
  Initialize(model, device, 5);
  const std::vector<uint8_t> text = SomeText(30);
  const std::vector<int64_t> starts = {0, 11};
  const Batch batch = MakeBatch(text, starts, 12, device);
  sherd::Tape tape;
  {
    const sherd::Recording on(tape);
    tape.Backward(sherd::CausalLmLoss()(model(batch.tokens), batch.labels).value);
  }
  constexpr double kStep = 1e-5;
  for (const sherd::Parameter& parameter : model.parameters()) {
    const int64_t element = parameter.numel() / 3;
    const double gradient = parameter.local_grad().data<double>()[element];
    double& value = parameter.MutableLocal().data<double>()[element];
    const double saved = value;
    value = saved + kStep;
    const double above = LossOf(model, batch);
    value = saved - kStep;
    const double below = LossOf(model, batch);
    value = saved;
    const double expected = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradient, expected, 1e-6 * std::max(1.0, std::abs(expected))) << parameter.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, LlamaGradientTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tied" : "Untied"; });

TEST(LlamaTest, AReadOfAShardedParameterNamesIt) {
  sherd::testing::RunRanks(2, [](sherd::World& world) {
    Llama model(kSmall, world.device());
    for (Block& block : model.blocks()) FullyShard(Checkpoint(block), world.mesh());
    FullyShard(model, world.mesh());
    Initialize(model, world.device(), 1);
    const std::vector<sherd::Parameter> parameters = model.parameters();
    const sherd::Parameter* down = nullptr;
    for (const sherd::Parameter& p : parameters) {
      if (p.name() == "block1.down.weight") down = &p;
    }
    ASSERT_NE(down, nullptr);
    try {
      sherd::Tape tape;
      const sherd::Recording on(tape);
      sherd::Sum(*down);
      ADD_FAILURE() << "a sharded parameter was read";
    } catch (const sherd::Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(std::string(error.what()).find("'block1.down.weight'"), std::string::npos)
          << error.what();
    }
  });
}

TEST(EvaluateTest, IsTheMeanOverAllWindowsOnAnyNumberOfRanks) {
  const std::vector<uint8_t> text = SomeText(100);
  const std::vector<int64_t> starts = {0, 12, 24, 40, 50, 61, 80};
  const sherd::Device device = sherd::Device::Cpu();
  Llama plain(kSmall, device);
  Initialize(plain, device, 1);
  double sum = 0.0;
  for (const int64_t start : starts) {
    sum += LossOf(plain, MakeBatch(text, {&start, 1}, 12, device));
  }
  const double expected = sum / static_cast<double>(12 * starts.size());
  for (const int size : {1, 2, 3}) {
    sherd::testing::RunRanks(size, [&](sherd::World& world) {
      Llama model(kSmall, world.device());
      for (Block& block : model.blocks()) FullyShard(block, world.mesh());
      FullyShard(model, world.mesh());
      Initialize(model, world.device(), 1);
      EXPECT_NEAR(Evaluate(model, world, text, starts, 2), expected, 1e-12);
    });
  }
}

TEST(GenerateTest, ContinuesThePromptAlikeOnAnyNumberOfRanks) {
  std::vector<std::string> texts;
  std::mutex mutex;
  for (const int size : {1, 2, 3}) {
    sherd::testing::RunRanks(size, [&](sherd::World& world) {
      Llama model(kSmall, world.device());
      FullyShard(model, world.mesh());
      Initialize(model, world.device(), 1);
      const std::string text =
          Generate(model, "ab", {.bytes = 20, .temperature = 1.0, .seed = 3}, world.device());
      const std::lock_guard lock(mutex);
      texts.push_back(text);
    });
  }
  ASSERT_EQ(texts.size(), 6u);
  EXPECT_EQ(texts[0].size(), 20u);
  EXPECT_EQ(texts, std::vector<std::string>(6, texts[0]));
}

TEST(GenerateTest, DrawsByTheProbabilitiesOfTheLogits) {
  const std::vector<double> logits = {std::log(1.0), std::log(6.0), std::log(3.0)};
  std::vector<int> counts(3, 0);
  for (int i = 0; i < 1000; ++i)
    ++counts[static_cast<size_t>(DrawToken(logits, 1.0, (i + 0.5) / 1000))];
  EXPECT_EQ(counts, (std::vector<int>{100, 600, 300}));
  EXPECT_EQ(DrawToken(logits, 0.0, 0.99), 1);
  EXPECT_EQ(DrawToken(logits, 0.01, 0.99), 1);  // nearly cold
  EXPECT_EQ(DrawToken({-1e300, 5.0, -1e300}, 1.0, 1e-9), 1);
}

}  // namespace
}  // namespace llm
