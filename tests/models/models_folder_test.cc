// Weights that fit and weights that do not: names, shapes, dtypes, heads, packed rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "llm/generate.h"
#include "tests/models/golden_folder.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::SafetensorsIndex;
using sherd::SafetensorsSpec;
using sherd::Tensor;

struct Raw {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using Tensors = std::map<std::string, Raw>;

Tensors ReadAll(const std::string& folder) {
  Tensors all;
  const auto index = SafetensorsIndex::Open(folder);
  EXPECT_TRUE(index.ok()) << index.status();
  for (const auto& [name, place] : index->tensors()) {
    all[name] = {
        *place.entry->type(), place.entry->shape, {place.bytes().begin(), place.bytes().end()}};
  }
  return all;
}

// A folder of those tensors with the config of a kind.
std::string WriteAll(const std::string& name, const std::string& kind, const Tensors& tensors) {
  const std::string folder = EmptyFolder(name);
  std::vector<SafetensorsSpec> specs;
  for (const auto& [tensor, raw] : tensors) specs.push_back({tensor, raw.dtype, raw.shape});
  auto writer = sherd::SafetensorsFolderWriter::Create(folder, specs);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const auto& [tensor, raw] : tensors) EXPECT_TRUE(writer->Append(raw.bytes).ok());
  EXPECT_TRUE(writer->Close().ok());
  std::filesystem::copy_file(FolderOf(kind) + "/config.json", folder + "/config.json");
  return folder;
}

std::unique_ptr<TextModel> ModelOf(const std::string& kind, sherd::World& world,
                                   const ConfigOptions& options = {}) {
  auto model = MakeModel(ConfigOfKind(kind, options), world.device());
  ShardAll(*model, world.mesh());
  Initialize(*model, world.device(), 3);
  return model;
}

// This rank's pieces of all parameters, as bits.
std::vector<std::vector<uint8_t>> PiecesOf(const TextModel& model) {
  std::vector<std::vector<uint8_t>> pieces;
  for (const sherd::Parameter& p : model.parameters()) {
    const auto* const bytes = static_cast<const uint8_t*>(p.local().raw());
    pieces.emplace_back(bytes, bytes + p.local().bytes());
  }
  return pieces;
}

std::string ErrorOf(const std::string& folder, const std::string& kind,
                    const LoadWeightsOptions& options = {}) {
  std::string error;
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const auto model = ModelOf(kind, world);
    const auto before = PiecesOf(*model);
    const auto loaded = LoadWeights(folder, *model, world.group(), options);
    EXPECT_FALSE(loaded.ok());
    EXPECT_EQ(PiecesOf(*model), before);  // nothing has changed
    if (world.rank() == 1) error = std::string(loaded.status().message());
  });
  return error;
}

TEST(ModelsFolder, WhatDoesNotFitIsListedAtOnceBeforeAnythingChanges) {
  Tensors tensors = ReadAll(FolderOf("qwen2"));
  tensors.erase("model.norm.weight");
  tensors.erase("model.layers.1.self_attn.v_proj.bias");
  tensors["model.layers.0.extra"] = {DType::kF32, {1}, std::vector<uint8_t>(4)};
  Raw& up = tensors["model.layers.0.mlp.up_proj.weight"];
  std::swap(up.shape[0], up.shape[1]);
  tensors["model.layers.1.input_layernorm.weight"] = {DType::kI32, {16}, std::vector<uint8_t>(64)};
  const std::string error = ErrorOf(WriteAll("bad", "qwen2", tensors), "qwen2");
  for (const char* const part :
       {"missing: model.layers.1.self_attn.v_proj.bias, model.norm.weight",
        "unexpected: model.layers.0.extra",
        "model.layers.0.mlp.up_proj.weight is F32 [16, 24] in the folder and [24, 16] in the model",
        "model.layers.1.input_layernorm.weight is I32 [16] in the folder"}) {
    EXPECT_TRUE(sherd::testing::Contains(error, part));
  }
}

TEST(ModelsFolder, OneRankThatCannotReadMakesAllFail) {
  const std::string error = ErrorOf(EmptyFolder("none"), "llama");
  EXPECT_TRUE(sherd::testing::Contains(error, "has neither model.safetensors"));
}

TEST(ModelsFolder, BuffersOfOlderFoldersArePassedOver) {
  Tensors tensors = ReadAll(FolderOf("gpt2"));
  tensors["transformer.h.0.attn.bias"] = {DType::kF32, {1}, std::vector<uint8_t>(4)};
  tensors["transformer.h.1.attn.masked_bias"] = {DType::kF32, {1}, std::vector<uint8_t>(4)};
  const std::string folder = WriteAll("buffers", "gpt2", tensors);
  sherd::testing::RunRanks(1, [&](sherd::World& world) {
    const auto model = ModelOf("gpt2", world);
    EXPECT_TRUE(LoadWeights(folder, *model, world.group()).ok());
  });
}

// Folders of GPT-2 have no prefix; a copy of the tied weight has to be one.
TEST(ModelsFolder, NamesComeWithThePrefixOrWithout) {
  Tensors plain;
  for (const auto& [name, raw] : ReadAll(FolderOf("gpt2"))) {
    plain[name.substr(std::string("transformer.").size())] = raw;
  }
  plain["lm_head.weight"] = plain.at("wte.weight");
  const std::string good = WriteAll("good", "gpt2", plain);
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const auto model = ModelOf("gpt2", world);
    ASSERT_TRUE(LoadWeights(FolderOf("gpt2"), *model, world.group()).ok());
    const auto want = PiecesOf(*model);
    Initialize(*model, world.device(), 4);
    EXPECT_NE(PiecesOf(*model), want);
    const auto loaded = LoadWeights(good, *model, world.group());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(PiecesOf(*model), want);
  });
  plain["lm_head.weight"].bytes[5] ^= 1;
  EXPECT_TRUE(sherd::testing::Contains(ErrorOf(WriteAll("bad", "gpt2", plain), "gpt2"),
                                       "lm_head.weight is not equal to wte.weight"));
}

// The bits of the nearest bf16, ties to even, of a finite f32.
uint16_t NearestBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

TEST(ModelsFolder, DtypesAreConvertedOnBothWays) {
  const std::string narrow = EmptyFolder("bf16"), wide = EmptyFolder("f32");
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const ModelConfig config = ConfigOfKind("gpt2");
    const auto model = ModelOf("gpt2", world);
    ASSERT_TRUE(LoadWeights(FolderOf("gpt2"), *model, world.group()).ok());
    ASSERT_TRUE(
        SavePretrained(narrow, config, *model, world.group(), {.dtype = DType::kBF16}).ok());
    Initialize(*model, world.device(), 4);
    ASSERT_TRUE(LoadWeights(narrow, *model, world.group()).ok());
    ASSERT_TRUE(SavePretrained(wide, config, *model, world.group()).ok());
    const auto refused =
        SavePretrained(EmptyFolder("ints"), config, *model, world.group(), {.dtype = DType::kI32});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  });
  const Tensors want = ReadAll(FolderOf("gpt2")), bf16 = ReadAll(narrow), f32 = ReadAll(wide);
  ASSERT_EQ(bf16.size(), want.size());
  for (const auto& [name, raw] : want) {
    EXPECT_EQ(bf16.at(name).dtype, DType::kBF16);
    for (size_t i = 0; i < raw.bytes.size() / 4; ++i) {
      float value = 0, back = 0;
      uint16_t got = 0;
      std::memcpy(&value, raw.bytes.data() + 4 * i, 4);
      std::memcpy(&got, bf16.at(name).bytes.data() + 2 * i, 2);
      std::memcpy(&back, f32.at(name).bytes.data() + 4 * i, 4);
      ASSERT_EQ(got, NearestBf16(value)) << name << " " << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(back), static_cast<uint32_t>(got) << 16) << name;
    }
  }
}

// Exact for what a half holds: small multiples of 1/8.
TEST(ModelsFolder, HalfAndDoubleFilesAreRead) {
  Tensors tensors = ReadAll(FolderOf("smollm2"));
  Tensors halves = tensors, doubles = tensors;
  for (auto& [name, raw] : tensors) {
    const size_t count = raw.bytes.size() / 4;
    halves[name] = {DType::kF16, raw.shape, std::vector<uint8_t>(2 * count)};
    doubles[name] = {DType::kF64, raw.shape, std::vector<uint8_t>(8 * count)};
    for (size_t i = 0; i < count; ++i) {
      const double value = 0.125 * (static_cast<double>(i % 15) + 1.0);
      const auto single = static_cast<float>(value);
      // 0.125 n = 1.f x 2^e: the exponent is biased by 15, the fraction has 10 bits.
      int exponent = 0;
      const double fraction = std::frexp(value, &exponent);
      const auto half = static_cast<uint16_t>((exponent - 1 + 15) << 10 |
                                              static_cast<int>((2 * fraction - 1) * 1024));
      std::memcpy(raw.bytes.data() + 4 * i, &single, 4);
      std::memcpy(halves[name].bytes.data() + 2 * i, &half, 2);
      std::memcpy(doubles[name].bytes.data() + 8 * i, &value, 8);
    }
  }
  const std::string folders[] = {WriteAll("f32", "smollm2", tensors),
                                 WriteAll("f16", "smollm2", halves),
                                 WriteAll("f64", "smollm2", doubles)};
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const auto model = ModelOf("smollm2", world);
    ASSERT_TRUE(LoadWeights(folders[0], *model, world.group()).ok());
    const auto want = PiecesOf(*model);
    for (const std::string& folder : {folders[1], folders[2]}) {
      Initialize(*model, world.device(), 4);
      ASSERT_TRUE(LoadWeights(folder, *model, world.group()).ok());
      EXPECT_EQ(PiecesOf(*model), want) << folder;
    }
  });
}

TEST(ModelsFolder, ANewHeadKeepsItsValuesAndTheBaseIsRead) {
  const HeadOptions head = {.kind = Head::kClassification, .labels = 5};
  const std::string folder = EmptyFolder("classifier");
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const auto model = ModelOf("llama", world, {.head = head});
    const auto refused = LoadWeights(FolderOf("llama"), *model, world.group());
    EXPECT_TRUE(sherd::testing::Contains(std::string(refused.status().message()),
                                         "missing: score.weight; unexpected: lm_head.weight"));
    const auto loaded = LoadWeights(FolderOf("llama"), *model, world.group(), {.new_head = true});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->missing, std::vector<std::string>{"score.weight"});
    EXPECT_EQ(loaded->unexpected, std::vector<std::string>{"lm_head.weight"});
    ASSERT_TRUE(
        SavePretrained(folder, ConfigOfKind("llama", {.head = head}), *model, world.group()).ok());
  });
  Tensors want = ReadAll(FolderOf("llama")), got = ReadAll(folder);
  EXPECT_EQ(got.at("score.weight").shape, (std::vector<int64_t>{5, 16}));
  want.erase("lm_head.weight");
  got.erase("score.weight");
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, raw] : want) EXPECT_EQ(got.at(name).bytes, raw.bytes) << name;
  const auto again = ReadModelConfig(folder);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->head().labels, 5);
}

TEST(ModelsFolder, AFolderThatHasWeightsIsNotWrittenOver) {
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const ModelConfig config = ConfigOfKind("smollm2");
    const auto model = ModelOf("smollm2", world);
    const auto saved = SavePretrained(FolderOf("smollm2"), config, *model, world.group());
    EXPECT_EQ(saved.status().code(), absl::StatusCode::kAlreadyExists);
  });
}

// Rows of several documents give what the documents give alone, in every kind of language model.
TEST(ModelsFolder, PackedDocumentsSeeThemselvesAlone) {
  for (const char* const kind : {"llama", "qwen3", "gpt2", "bert_mlm"}) {
    sherd::testing::RunRanks(1, [&](sherd::World& world) {
      const auto model = ModelOf(kind, world);
      ASSERT_TRUE(LoadWeights(FolderOf(kind), *model, world.group()).ok());
      const sherd::Device& device = world.device();
      const auto ids = [&](const std::vector<int64_t>& values) {
        return Tensor::FromHost<int64_t>(device, values, {1, static_cast<int64_t>(values.size())});
      };
      const std::vector<int64_t> a = {5, 9, 30}, b = {7, 7, 21, 8};
      const std::vector<float> of_a = (*model)(ids(a)).value().ToHost<float>();
      const std::vector<float> of_b = (*model)(ids(b)).value().ToHost<float>();
      const std::vector<float> packed =
          (*model)(TextInput{.tokens = ids({5, 9, 30, 7, 7, 21, 8}),
                             .cu_seqlens = Tensor::FromHost<int64_t>(
                                 device, std::vector<int64_t>{0, 3, 7}, {3}),
                             .positions = ids({0, 1, 2, 0, 1, 2, 3})})
              .value()
              .ToHost<float>();
      ASSERT_EQ(packed.size(), of_a.size() + of_b.size());
      for (size_t i = 0; i < packed.size(); ++i) {
        const float want = i < of_a.size() ? of_a[i] : of_b[i - of_a.size()];
        ASSERT_NEAR(packed[i], want, 2e-5 * std::max(1.0F, std::abs(want))) << kind << " " << i;
      }
    });
  }
}

// The likeliest token behind a row of the golden input, by the logits of transformers.
TEST(ModelsFolder, ContinuesAsTheGoldenLogitsSay) {
  for (const char* const kind : {"llama", "smollm2", "mistral", "qwen2", "qwen3", "gpt2"}) {
    for (int ranks : {1, 2}) {
      sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
        const auto golden = sherd::SafetensorsFile::Open(FolderOf(kind) + "/golden.safetensors");
        ASSERT_TRUE(golden.ok());
        std::vector<int64_t> row(7);
        std::vector<float> logits(40);
        std::memcpy(row.data(), golden->Bytes(*golden->Find("tokens")).data(), 7 * 8);
        std::memcpy(logits.data(), golden->Bytes(*golden->Find("out")).data() + 6 * 40 * 4, 40 * 4);
        const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
        const auto model = ModelOf(kind, world);
        ASSERT_TRUE(LoadWeights(FolderOf(kind), *model, world.group()).ok());
        const std::vector<int64_t> drawn = Continue(
            *model, row, {.tokens = 1, .sampling = {.temperature = 0.0}, .group = &world.group()},
            world.device());
        EXPECT_EQ(drawn, std::vector<int64_t>{likeliest}) << kind;
      });
    }
  }
}

TEST(ModelsFolder, InputsThatDoNotFitAreNamed) {
  sherd::testing::RunRanks(1, [&](sherd::World& world) {
    const sherd::Device& device = world.device();
    const auto ids = [&](int64_t count) { return Tensor::Zeros(device, DType::kI64, {1, count}); };
    const auto error_of = [&](const std::string& kind, const TextInput& input) {
      const auto model = MakeModel(ConfigOfKind(kind), device);
      Initialize(*model, device, 3);
      return sherd::testing::ErrorOf([&] { (*model)(input); });
    };
    EXPECT_TRUE(sherd::testing::Contains(error_of("gpt2", {.tokens = ids(17)}),
                                         "rows have 17 tokens, and the model has 16 positions"));
    EXPECT_TRUE(sherd::testing::Contains(error_of("gpt2", {.tokens = ids(4), .mask = ids(5)}),
                                         "the mask is i64 [1, 5]"));
    const Tensor documents = Tensor::FromHost<int64_t>(device, std::vector<int64_t>{0, 2, 4}, {3});
    EXPECT_TRUE(sherd::testing::Contains(
        error_of("gpt2", {.tokens = ids(4), .cu_seqlens = documents}), "need the positions"));
    EXPECT_TRUE(sherd::testing::Contains(
        error_of("bert_classify", {.tokens = ids(4), .cu_seqlens = documents}), "no one vector"));
  });
}

// [B, C] by plain loops, of left and right padding.
TEST(ModelsFolder, PoolingLeavesPaddingOut) {
  const sherd::Device device = sherd::Device::Cpu();
  const std::vector<float> hidden = {1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60};  // [2, 3, 2]
  const sherd::Variable h = Tensor::FromHost<float>(device, hidden, {2, 3, 2});
  const Tensor mask =
      Tensor::FromHost<int64_t>(device, std::vector<int64_t>{1, 1, 0, 0, 1, 1}, {2, 3});
  const auto pooled = [&](const Tensor& m, Pooling pooling) {
    return Pool(h, m, pooling).value().ToHost<float>();
  };
  EXPECT_EQ(pooled(mask, Pooling::kMean), (std::vector<float>{2, 3, 40, 50}));
  EXPECT_EQ(pooled(mask, Pooling::kFirst), (std::vector<float>{1, 2, 30, 40}));
  EXPECT_EQ(pooled(mask, Pooling::kLast), (std::vector<float>{3, 4, 50, 60}));
  const std::vector<float> means = pooled({}, Pooling::kMean), want = {3, 4, 30, 40};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_FLOAT_EQ(means[i], want[i]);
  EXPECT_EQ(pooled({}, Pooling::kLast), (std::vector<float>{5, 6, 50, 60}));
  const std::vector<float> unit =
      Embed(h, mask, {.pooling = Pooling::kLast, .normalize = true}).value().ToHost<float>();
  EXPECT_FLOAT_EQ(unit[0], 0.6F);
  EXPECT_FLOAT_EQ(unit[1], 0.8F);
}

// A token chosen for each row, and the tokens behind an instruction, where padding is known too.
TEST(ModelsFolder, PoolsTheTokensThatAreChosen) {
  const sherd::Device device = sherd::Device::Cpu();
  const auto rows = [&](const std::vector<int64_t>& values) {
    return Tensor::FromHost<int64_t>(device, values, {2, 4});
  };
  const auto embed = [&](Pooling pooling, const TextInput& input) {
    const auto config =
        ReadModelConfig(FolderOf("llama"), {.head = HeadOptions{Head::kEmbedding, 2, pooling}});
    const auto model = MakeModel(*config, device);
    Initialize(*model, device, 3);
    return (*model)(input).value().ToHost<float>();
  };
  const Tensor tokens = rows({5, 9, 30, 0, 7, 21, 8, 11}), mask = rows({1, 1, 1, 0, 1, 1, 1, 1});
  // A decoder sees nothing behind a token, so that a chosen one is the last of a shorter row.
  const std::vector<float> chosen = embed(
      Pooling::kFirst, {.tokens = tokens, .mask = mask, .pooled = rows({0, 1, 0, 0, 0, 0, 1, 0})});
  EXPECT_EQ(chosen,
            embed(Pooling::kLast, {.tokens = tokens, .mask = rows({1, 1, 0, 0, 1, 1, 1, 0})}));
  EXPECT_NE(chosen, embed(Pooling::kLast, {.tokens = tokens, .mask = mask}));
  // The mean of one token is that token.
  const std::vector<float> mean = embed(
      Pooling::kMean, {.tokens = tokens, .mask = mask, .pooled = rows({0, 1, 0, 0, 0, 0, 1, 0})});
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(mean[i], chosen[i], 1e-6) << i;
}

}  // namespace
}  // namespace llm
