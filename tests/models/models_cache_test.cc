// Keys and values of tokens that are kept, against forwards of whole texts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "llm/generate.h"
#include "llm/models/key_value_cache.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/tape.h"
#include "tests/models/golden_folder.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::Tensor;

constexpr int64_t kVocabulary = 40;  // of all golden folders

std::unique_ptr<TextModel> ModelOf(const std::string& kind, sherd::World& world) {
  auto model = MakeModel(ConfigOfKind(kind, {.dtype = DType::kF64}), world.device());
  ShardAll(*model, world.mesh());
  EXPECT_TRUE(LoadWeights(FolderOf(kind), *model, world.group()).ok());
  return model;
}

std::shared_ptr<KeyValueCache> CacheOf(const TextModel& model, int64_t capacity) {
  return std::make_shared<KeyValueCache>(static_cast<int64_t>(model.layers().size()), capacity);
}

// Two rows of tokens that do not repeat.
std::vector<std::vector<int64_t>> Rows(int64_t tokens, int64_t seed) {
  std::vector<std::vector<int64_t>> rows(2);
  for (int64_t t = 0; t < tokens; ++t) {
    rows[0].push_back((t * t + 3 * t + seed) % kVocabulary);
    rows[1].push_back((5 * t * t + t + 7 + seed) % kVocabulary);
  }
  return rows;
}

// Columns [begin, end) of rows.
Tensor Part(const std::vector<std::vector<int64_t>>& rows, size_t begin, size_t end,
            const sherd::Device& device) {
  std::vector<int64_t> part;
  for (const auto& row : rows) {
    for (size_t t = begin; t < end; ++t) part.push_back(row[t]);
  }
  return Tensor::FromHost<int64_t>(
      device, part, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(end - begin)});
}

// |got - want| <= 1e-12 of the largest, where `got` has the tokens [begin, end) of `want`.
void ExpectPart(const Tensor& got, const Tensor& want, int64_t begin, int64_t end,
                const std::string& what) {
  const Tensor part = want.Slice(1, begin, end);
  ASSERT_EQ(got.shape(), part.shape()) << what;
  const std::vector<double> all = want.ToHost<double>();
  const int64_t tokens = want.dim(1);
  double largest = 0.0;
  for (const double value : all) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0.1) << what;
  const std::vector<double> values = got.ToHost<double>();
  auto value = values.begin();
  for (int64_t row = 0; row < want.dim(0); ++row) {
    for (int64_t i = (row * tokens + begin) * kVocabulary; i < (row * tokens + end) * kVocabulary;
         ++i, ++value) {
      ASSERT_NEAR(*value, all[static_cast<size_t>(i)], 1e-12 * largest) << what << " " << i;
    }
  }
}

class ModelsCache : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelsCache, TextsInPartsHaveTheLogitsOfTheWhole) {
  for (const int ranks : {1, 2}) {
    sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
      const auto model = ModelOf(GetParam(), world);
      const auto rows = Rows(12, world.rank());
      const Tensor whole = (*model)(Part(rows, 0, 12, world.device())).value();
      const auto cache = CacheOf(*model, 14);
      size_t begin = 0;
      for (const size_t length : {5, 1, 1, 3, 2}) {
        const size_t end = begin + length;
        const TextInput input = {.tokens = Part(rows, begin, end, world.device()), .cache = cache};
        ExpectPart((*model)(input).value(), whole, static_cast<int64_t>(begin),
                   static_cast<int64_t>(end), GetParam() + " at " + std::to_string(begin));
        EXPECT_EQ(cache->tokens(), static_cast<int64_t>(end));
        begin = end;
      }
    });
  }
}

TEST_P(ModelsCache, ForgottenTokensLeaveNoTrace) {
  sherd::testing::RunRanks(1, [&](sherd::World& world) {
    const auto model = ModelOf(GetParam(), world);
    const auto rows = Rows(7, 0);
    auto others = Rows(7, 11);
    for (size_t row = 0; row < 2; ++row) std::copy_n(rows[row].begin(), 3, others[row].begin());
    const auto cache = CacheOf(*model, 7);
    (*model)(TextInput{.tokens = Part(rows, 0, 7, world.device()), .cache = cache});
    cache->Truncate(3);
    const TextInput rest = {.tokens = Part(others, 3, 7, world.device()), .cache = cache};
    ExpectPart((*model)(rest).value(), (*model)(Part(others, 0, 7, world.device())).value(), 3, 7,
               GetParam());
  });
}

// Also when the text grows beyond the model's positions, and when it begins there.
TEST_P(ModelsCache, TextsAreThoseOfForwardsOfTheWhole) {
  for (const int ranks : {1, 2}) {
    sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
      const auto model = ModelOf(GetParam(), world);
      for (const int64_t prompt : {1, 6, 40}) {
        for (const double temperature : {0.0, 1.5}) {
          ContinueOptions options = {.tokens = 38,
                                     .sampling = {.temperature = temperature, .seed = 5},
                                     .group = &world.group()};
          const std::vector<int64_t> kept =
              Continue(*model, Rows(prompt, 2)[0], options, world.device());
          options.cache = false;
          EXPECT_EQ(kept, Continue(*model, Rows(prompt, 2)[0], options, world.device()));
          EXPECT_EQ(kept.size(), 38u);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ModelsCache,
                         ::testing::Values("llama", "smollm2", "qwen2", "qwen3", "gpt2"),
                         [](const auto& kind) { return kind.param; });

// Notes the tokens of each call of a layer.
class Lengths : public sherd::Interceptor {
 public:
  void Around(const sherd::CallContext& call) override {
    call.record().VisitArguments([this](sherd::Variable& x) { all.push_back(x.dim(1)); });
    call.Proceed();
  }
  std::vector<int64_t> all;
};

TEST(ModelsCacheCost, EachTokenCostsTheForwardOfOneWhileThereArePositions) {
  sherd::testing::RunRanks(1, [](sherd::World& world) {
    const auto model = ModelOf("gpt2", world);  // has 16 positions
    const auto lengths = std::make_shared<Lengths>();
    model->layers()[1]->AddInterceptor(lengths);
    Continue(*model, {1, 2, 3}, {.tokens = 16}, world.device());
    std::vector<int64_t> want(16, 1);
    want.front() = want[14] = want[15] = 16;
    EXPECT_EQ(lengths->all, want);
    lengths->all.clear();
    Continue(*model, {1, 2, 3}, {.tokens = 2, .cache = false}, world.device());
    EXPECT_EQ(lengths->all, (std::vector<int64_t>{16, 16}));
  });
}

TEST(ModelsCacheErrors, WhatDoesNotFitIsNamed) {
  sherd::testing::RunRanks(1, [](sherd::World& world) {
    const sherd::Device& device = world.device();
    const auto ids = [&](int64_t rows, int64_t count) {
      return Tensor::Zeros(device, DType::kI64, {rows, count});
    };
    const auto made = [&](const std::string& kind) {
      auto model = MakeModel(ConfigOfKind(kind), device);
      Initialize(*model, device, 3);
      return model;
    };
    const auto model = made("gpt2");
    const auto cache = CacheOf(*model, 40);
    (*model)(TextInput{.tokens = ids(1, 10), .cache = cache});
    const auto error_of = [](TextModel& of, const TextInput& input) {
      return sherd::testing::ErrorOf([&] { of(input); });
    };
    const auto has = [](const std::string& error, const std::string& part) {
      EXPECT_TRUE(sherd::testing::Contains(error, part));
    };
    has(error_of(*model, {.tokens = ids(1, 7), .cache = cache}),
        "rows have 17 tokens, and the model has 16 positions");
    has(error_of(*model, {.tokens = ids(2, 1), .cache = cache}),
        "it is of 1 rows, and these are 2");
    has(error_of(*model, {.tokens = ids(1, 1), .mask = ids(1, 1), .cache = cache}),
        "neither a mask nor documents");
    has(error_of(*model, {.tokens = ids(1, 4), .cache = CacheOf(*model, 3)}),
        "it has room for 3 tokens of a row, and these are 4");
    has(error_of(*model, {.tokens = ids(1, 1), .cache = std::make_shared<KeyValueCache>(3, 4)}),
        "the cache is of 3 layers, and the model has 2");
    {
      sherd::Tape tape;
      const sherd::Recording on(tape);
      has(error_of(*model, {.tokens = ids(1, 1), .cache = cache}), "a Recording is on");
    }
    EXPECT_EQ(cache->tokens(), 10);
    const auto bert = made("bert_mlm");
    has(error_of(*bert, {.tokens = ids(1, 1), .cache = CacheOf(*bert, 4)}),
        "tokens see those behind them, so a cache is of no use");
  });
}

}  // namespace
}  // namespace llm
