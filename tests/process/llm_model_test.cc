#include "llm/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "data/loader.h"
#include "data/packing.h"
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

using data::Batch;
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

std::vector<int64_t> SomeTokens(int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((i * i + 7 * i) % 251);
  return tokens;
}

// Documents of `lengths`, packed into rows of `row_tokens`.
struct SomeRows {
  explicit SomeRows(const std::vector<int64_t>& lengths, int64_t row_tokens = kSmall.positions)
      : documents(Documents(lengths)), packing(documents, row_tokens), samples(packing) {}

  static data::DocumentList Documents(const std::vector<int64_t>& lengths) {
    const std::vector<int64_t> tokens = SomeTokens(1000);
    data::DocumentList list;
    size_t begin = 0;
    for (const int64_t length : lengths) {
      list.Add(std::span(tokens).subspan(begin, static_cast<size_t>(length)));
      begin += static_cast<size_t>(length);
    }
    return list;
  }
  Batch Rows(std::vector<int64_t> which, const sherd::Device& device) const {
    return data::MakeBatch(samples, which, device);
  }

  const data::DocumentList documents;
  const data::Packing packing;
  const data::PackedSamples samples;
};

Tensor Tokens(const sherd::Device& device, const std::vector<int64_t>& ids) {
  return Tensor::FromHost<int64_t>(device, ids, {1, static_cast<int64_t>(ids.size())});
}

double LossOf(Llama& model, const Batch& batch) {
  const sherd::CausalLmLoss loss({.ignore_index = data::kIgnored});
  return *loss(model(batch.tokens, batch.cu_seqlens), batch.labels).value.value().data<double>();
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

  const SomeRows rows({13});
  EXPECT_NEAR(LossOf(model, rows.Rows({0}, device)) / 12, std::log(256.0), 0.05);
}

TEST(LlamaTest, PackedDocumentsSeeThemselvesAlone) {
  const sherd::Device device = sherd::Device::Cpu();
  Llama model(kSmall, device);
  Initialize(model, device, 5);
  // Rows of 12: 5 4 3 together, 7 with padding behind it, and the same documents one by one.
  const SomeRows packed({5, 4, 3, 7});
  ASSERT_EQ(packed.samples.size(), 2);
  const Batch batch = packed.Rows({0, 1}, device);
  EXPECT_EQ(batch.cu_seqlens.ToHost<int64_t>(), (std::vector<int64_t>{0, 5, 9, 12, 19, 24}));
  const std::vector<int64_t> tokens = SomeTokens(19);
  double sum = 0.0;
  size_t begin = 0;
  for (const int64_t length : {5, 4, 3, 7}) {
    data::DocumentList one;
    one.Add(std::span(tokens).subspan(begin, static_cast<size_t>(length)));
    const data::Packing alone(one, length);
    const Batch row = data::MakeBatch(data::PackedSamples(alone), std::vector<int64_t>{0}, device);
    EXPECT_FALSE(row.cu_seqlens.defined());
    sum += LossOf(model, row);
    begin += static_cast<size_t>(length);
  }
  EXPECT_NEAR(LossOf(model, batch), sum, 1e-12 * sum);
  Batch blind = batch;
  blind.cu_seqlens = {};
  EXPECT_GT(std::abs(LossOf(model, blind) - sum), 1e-6 * sum);
}

class LlamaGradientTest : public testing::TestWithParam<bool> {};

TEST_P(LlamaGradientTest, AgreesWithDifferences) {
  const sherd::Device device = sherd::Device::Cpu();
  LlamaConfig config = kSmall;
  config.tied = GetParam();
  Llama model(config, device);
  Initialize(model, device, 5);
  const Batch batch = SomeRows({5, 7, 12}).Rows({0, 1}, device);
  sherd::Tape tape;
  {
    const sherd::Recording on(tape);
    const sherd::CausalLmLoss loss({.ignore_index = data::kIgnored});
    tape.Backward(loss(model(batch.tokens, batch.cu_seqlens), batch.labels).value);
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

TEST(EvaluateTest, IsTheMeanOverAllLabelsOnAnyNumberOfRanks) {
  const SomeRows rows({25, 5, 30, 3, 17, 1});
  const std::vector<int64_t> which = {4, 0, 2, 5, 1};
  const sherd::Device device = sherd::Device::Cpu();
  Llama plain(kSmall, device);
  Initialize(plain, device, 1);
  double sum = 0.0;
  int64_t labels = 0;
  for (const int64_t row : which) {
    const Batch batch = rows.Rows({row}, device);
    sum += LossOf(plain, batch);
    for (const int64_t label : batch.labels.ToHost<int64_t>()) labels += label != data::kIgnored;
  }
  const double expected = sum / static_cast<double>(labels);
  for (const int size : {1, 2, 3}) {
    sherd::testing::RunRanks(size, [&](sherd::World& world) {
      Llama model(kSmall, world.device());
      for (Block& block : model.blocks()) FullyShard(block, world.mesh());
      FullyShard(model, world.mesh());
      Initialize(model, world.device(), 1);
      EXPECT_NEAR(Evaluate(model, world, rows.samples, which, 2), expected, 1e-12);
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

// Which of these four are left: probabilities 0.1, 0.4, 0.2 and 0.3 at temperature 1.
std::string Left(const Sampling& sampling) {
  std::vector<double> logits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};
  KeepLikely(sampling, logits);
  std::string left;
  for (double logit : logits) left += std::isfinite(logit) ? '1' : '0';
  return left;
}

TEST(GenerateTest, OnlyTheLikelyTokensAreDrawn) {
  EXPECT_EQ(Left({.temperature = 1.0}), "1111");
  EXPECT_EQ(Left({.temperature = 1.0, .top_k = 1}), "0100");
  EXPECT_EQ(Left({.temperature = 1.0, .top_k = 3}), "0111");
  EXPECT_EQ(Left({.temperature = 1.0, .top_k = 9}), "1111");
  EXPECT_EQ(Left({.temperature = 1.0, .top_p = 0.3}), "0100");   // one at least
  EXPECT_EQ(Left({.temperature = 1.0, .top_p = 0.65}), "0101");  // 0.4 + 0.3 is enough
  EXPECT_EQ(Left({.temperature = 1.0, .top_p = 0.75}), "0111");
  // Of the two that are left 0.4 / 0.7 is 0.57.
  EXPECT_EQ(Left({.temperature = 1.0, .top_k = 2, .top_p = 0.55}), "0100");
  EXPECT_EQ(Left({.temperature = 1.0, .top_k = 2, .top_p = 0.6}), "0101");
  // At temperature 1/2 probabilities are as 1 : 16 : 4 : 9, and 16 / 30 is 0.53.
  EXPECT_EQ(Left({.temperature = 0.5, .top_p = 0.5}), "0100");
  std::vector<double> equal(3, 1.0);
  KeepLikely({.temperature = 1.0, .top_k = 2}, equal);
  EXPECT_FALSE(std::isfinite(equal[2]));
  EXPECT_TRUE(std::isfinite(equal[0]) && std::isfinite(equal[1]));
}

TEST(GenerateTest, AnEndTokenEndsItAndTheContextSlides) {
  const sherd::Device device = sherd::Device::Cpu();
  Llama model(kSmall, device);
  Initialize(model, device, 1);
  const ContinueOptions options = {.tokens = 30, .sampling = {.temperature = 1.0, .seed = 3}};
  const std::vector<int64_t> all = Continue(model, {97, 98}, options, device);
  ASSERT_EQ(all.size(), 30u);  // positions are 12
  ContinueOptions ended = options;
  ended.end_tokens = {1000, all[6]};
  const auto first = std::find(all.begin(), all.end(), all[6]);
  std::vector<int64_t> seen;
  ended.on_token = [&](int64_t token) { seen.push_back(token); };
  const std::vector<int64_t> want(all.begin(), first);
  EXPECT_EQ(Continue(model, {97, 98}, ended, device), want);
  EXPECT_EQ(seen, want);
}

}  // namespace
}  // namespace llm
