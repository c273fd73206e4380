// What config.json may say, and what is said of the rest.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>

#include "tests/models/golden_folder.h"

namespace llm {
namespace {

using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;
using sherd::kernels::RopeScalingType;

Json Value(const std::string& text) {
  const auto json = sherd::ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return *json;
}

// The config of a kind with some fields set, or taken away where the value is "".
std::string TextOf(const std::string& kind,
                   const std::vector<std::pair<std::string, std::string>>& fields) {
  Json json = Value(ReadText(FolderOf(kind) + "/config.json"));
  auto& object = std::get<JsonObject>(json.value);
  for (const auto& [field, value] : fields) {
    object.erase(field);
    if (!value.empty()) object[field] = Value(value);
  }
  return sherd::WriteJson(json);
}

std::string ErrorOf(const std::string& text) {
  const auto config = ParseModelConfig("x/config.json", text);
  if (config.ok()) return "no error";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ModelConfig, FieldsThatAreNotSupportedAreNamedWithTheirValue) {
  const struct {
    const char* kind;
    const char* field;
    const char* value;
    const char* message;
  } cases[] = {
      {"llama", "hidden_act", "\"gelu\"", "hidden_act is \"gelu\", which is not supported"},
      {"llama", "model_type", "\"mamba\"", "model_type is \"mamba\", which is not supported"},
      {"llama", "model_type", "", "model_type is missing"},
      {"llama", "model_type", "7", "model_type is 7, not a string"},
      {"llama", "vocab_size", "", "vocab_size is missing"},
      {"llama", "vocab_size", "null", "vocab_size is missing"},
      {"llama", "vocab_size", "0", "vocab_size is 0, not an integer from 1 to"},
      {"llama", "vocab_size", "40.5", "vocab_size is 40.5, not an integer"},
      {"llama", "hidden_size", "\"16\"", "hidden_size is \"16\", not an integer"},
      {"llama", "num_hidden_layers", "100000", "num_hidden_layers is 100000, not an integer from"},
      {"llama", "num_key_value_heads", "3", "num_key_value_heads is 3, which is not supported"},
      {"llama", "head_dim", "5", "head_dim is 5, which is not supported: heads of size 5"},
      {"llama", "head_dim", "512", "head_dim is 512, not an integer from 1 to 256"},
      {"llama", "rms_norm_eps", "true", "rms_norm_eps is true, not a number"},
      {"llama", "tie_word_embeddings", "1", "tie_word_embeddings is 1, not true or false"},
      {"llama", "rope_scaling", "7", "rope_scaling is 7, not an object"},
      {"llama", "rope_scaling", R"({"rope_type":"longrope","factor":2.0})",
       "rope_scaling.rope_type is \"longrope\", which is not supported"},
      {"llama", "rope_scaling", R"({"type":"su","factor":2.0})",
       "rope_scaling.type is \"su\", which is not supported"},
      {"llama", "rope_scaling", R"({"factor":2.0})", "rope_scaling is an object, which is not"},
      {"llama", "rope_scaling", R"({"rope_type":"linear"})", "rope_scaling.factor is missing"},
      {"llama", "rope_scaling", R"({"rope_type":"linear","factor":0.5})",
       "rope_scaling.factor is 0.5, not a number from 1"},
      {"llama", "rope_scaling",
       R"({"rope_type":"llama3","factor":2,"low_freq_factor":4,"high_freq_factor":1})",
       "rope_scaling.high_freq_factor is 1, which is not supported"},
      {"llama", "rope_scaling", R"({"rope_type":"yarn","factor":2,"mscale":0.7})",
       "rope_scaling.mscale is 0.7, which is not supported"},
      {"llama", "rope_scaling", R"({"rope_type":"yarn","factor":2,"truncate":false})",
       "rope_scaling.truncate is false, which is not supported"},
      {"llama", "rope_parameters", R"({"full_attention":{"rope_type":"default"}})",
       "rope_parameters is an object, which is not supported"},
      {"llama", "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5, which is not"},
      {"llama", "quantization_config", R"({"bits":4})", "quantization_config is an object"},
      {"llama", "layer_types", R"(["full_attention","sliding_attention"])",
       "layer_types is [ \"full_attention\", \"sliding_attention\"], which is not supported"},
      {"llama", "architectures", R"(["LlamaForTokenClassification"])",
       "architectures is [ \"LlamaForTokenClassification\"], which is not supported"},
      {"llama", "architectures", R"(["MistralForCausalLM"])", "architectures is [ \"Mistral"},
      {"llama", "attention_dropout", "1.5", "attention_dropout is 1.5, not a number from 0"},
      {"mistral", "sliding_window", "16", "sliding_window is 16, which is not supported"},
      {"mistral", "attention_bias", "true", "attention_bias is true, which is not supported"},
      {"gpt2", "activation_function", "\"quick_gelu\"",
       "activation_function is \"quick_gelu\", which is not supported"},
      {"gpt2", "n_head", "3", "n_head is 3, which is not supported: it does not divide n_embd 16"},
      {"gpt2", "add_cross_attention", "true", "add_cross_attention is true, which is not"},
      {"bert_mlm", "is_decoder", "true", "is_decoder is true, which is not supported"},
      {"bert_mlm", "hidden_act", "\"mish\"", "hidden_act is \"mish\", which is not supported"},
      {"bert_mlm", "position_embedding_type", "\"relative_key\"",
       "position_embedding_type is \"relative_key\", which is not supported"},
      {"bert_classify", "num_labels", "4", "num_labels is 4, which is not supported"},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(TextOf(c.kind, {{c.field, c.value}}));
    EXPECT_TRUE(sherd::testing::Contains(error, c.message)) << c.field;
    EXPECT_TRUE(sherd::testing::Contains(error, "x/config.json"));
  }
}

TEST(ModelConfig, AllThatIsWrongIsSaidAtOnce) {
  const std::string error =
      ErrorOf(TextOf("llama", {{"vocab_size", ""}, {"hidden_act", "\"relu\""}, {"head_dim", "7"}}));
  for (const char* part : {"vocab_size", "hidden_act", "head_dim"}) {
    EXPECT_TRUE(sherd::testing::Contains(error, part));
  }
}

TEST(ModelConfig, WhatIsNoConfigIsRefused) {
  EXPECT_TRUE(sherd::testing::Contains(ErrorOf("{"), "x/config.json is no JSON: column 2"));
  EXPECT_TRUE(sherd::testing::Contains(ErrorOf("[]"), "x/config.json is an array"));
  const auto none = ReadModelConfig(EmptyFolder("none"));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
}

// Windows that never act, biases and dropout of attention, and rope in both spellings.
TEST(ModelConfig, WhatIsSupportedIsRead) {
  const auto read = [](const std::string& kind,
                       const std::vector<std::pair<std::string, std::string>>& fields) {
    const auto config = ParseModelConfig("x", TextOf(kind, fields));
    EXPECT_TRUE(config.ok()) << config.status();
    return std::get<LlamaConfig>(config->sizes);
  };
  EXPECT_EQ(read("mistral", {{"sliding_window", "32"}}).positions, 32);
  EXPECT_EQ(read("mistral", {{"sliding_window", ""}}).positions, 32);  // 4096 is more than 32
  EXPECT_EQ(read("qwen2", {{"sliding_window", "16"}}).positions, 32);  // not in use
  EXPECT_EQ(read("llama", {{"attention_dropout", "0.25"}}).attention_dropout, 0.25);
  EXPECT_EQ(read("llama", {{"layer_types", R"(["full_attention","full_attention"])"}}).layers, 2);
  EXPECT_EQ(read("llama", {{"rope_theta", "5e5"}}).rope_theta, 5e5);
  const LlamaConfig newer = read(
      "llama", {{"rope_scaling", ""},
                {"rope_theta", ""},
                {"rope_parameters", R"({"rope_type":"linear","rope_theta":7000,"factor":3})"}});
  EXPECT_EQ(newer.rope_theta, 7000.0);
  EXPECT_EQ(newer.rope.type, RopeScalingType::kLinear);
  EXPECT_EQ(newer.rope.factor, 3.0);
  const LlamaConfig older = read("llama", {{"rope_scaling", R"({"type":"dynamic","factor":2})"}});
  EXPECT_EQ(older.rope.type, RopeScalingType::kDynamic);
  EXPECT_EQ(older.rope.original_max_position_embeddings, 32);
  EXPECT_EQ(read("llama", {{"head_dim", ""}}).head_size(), 4);
  const std::string in_use =
      ErrorOf(TextOf("qwen2", {{"sliding_window", "16"}, {"use_sliding_window", "true"}}));
  EXPECT_TRUE(sherd::testing::Contains(in_use, "sliding_window is 16, which is not supported"));
  const std::string absent =
      ErrorOf(TextOf("mistral", {{"sliding_window", ""}, {"max_position_embeddings", "8192"}}));
  EXPECT_TRUE(sherd::testing::Contains(absent, "sliding_window is absent"));
}

TEST(ModelConfig, HeadsFollowTheArchitectureUnlessTheCallerSays) {
  EXPECT_EQ(ConfigOfKind("llama").head().kind, Head::kLanguageModel);
  EXPECT_EQ(ConfigOfKind("llama_embed").head().kind, Head::kEmbedding);
  const ModelConfig classify = ConfigOfKind("bert_classify");
  EXPECT_EQ(classify.head().kind, Head::kClassification);
  EXPECT_EQ(classify.head().labels, 3);
  const ModelConfig other =
      ConfigOfKind("llama", {.head = HeadOptions{.kind = Head::kClassification, .labels = 5}});
  EXPECT_EQ(other.head().labels, 5);
  const Json written = Value(ConfigText(other, sherd::DType::kBF16));
  const auto& fields = std::get<JsonObject>(written.value);
  EXPECT_EQ(std::get<std::string>(fields.at("torch_dtype").value), "bfloat16");
  EXPECT_EQ(std::get<JsonObject>(fields.at("id2label").value).size(), 5u);
  const auto& names = std::get<JsonArray>(fields.at("architectures").value);
  EXPECT_EQ(std::get<std::string>(names.at(0).value), "LlamaForSequenceClassification");
}

// The fields of a model that was made here describe it.
TEST(ModelConfig, AModelMadeHereHasFieldsThatReadAsItself) {
  LlamaConfig made = {.vocabulary = 300, .dim = 48, .layers = 3, .heads = 6, .kv_heads = 3};
  made.ffn = 96;
  made.positions = 100;
  made.tied = false;
  made.norm_eps = 1e-6;
  made.rope_theta = 500.0;
  made.rope = {.type = RopeScalingType::kYarn,
               .factor = 4.0,
               .original_max_position_embeddings = 25,
               .beta_fast = 16.0};
  for (const auto& [qkv, out, norm] :
       {std::tuple(false, false, false), std::tuple(true, true, false),
        std::tuple(true, false, false), std::tuple(false, false, true)}) {
    made.qkv_bias = qkv;
    made.out_bias = out;
    made.qk_norm = norm;
    const auto read = ParseModelConfig("made", ConfigText(ConfigOf(made), sherd::DType::kF32));
    ASSERT_TRUE(read.ok()) << read.status();
    const LlamaConfig& got = std::get<LlamaConfig>(read->sizes);
    EXPECT_EQ(got.vocabulary, 300);
    EXPECT_EQ(got.dim, 48);
    EXPECT_EQ(got.layers, 3);
    EXPECT_EQ(got.heads, 6);
    EXPECT_EQ(got.kv_heads, 3);
    EXPECT_EQ(got.ffn, 96);
    EXPECT_EQ(got.positions, 100);
    EXPECT_FALSE(got.tied);
    EXPECT_EQ(got.norm_eps, 1e-6);
    EXPECT_EQ(got.rope_theta, 500.0);
    EXPECT_EQ(got.rope.type, RopeScalingType::kYarn);
    EXPECT_EQ(got.rope.factor, 4.0);
    EXPECT_EQ(got.rope.original_max_position_embeddings, 25);
    EXPECT_EQ(got.rope.beta_fast, 16.0);
    EXPECT_EQ(got.qkv_bias, qkv);
    EXPECT_EQ(got.out_bias, out);
    EXPECT_EQ(got.qk_norm, norm);
    EXPECT_EQ(got.head_size(), 8);
  }
}

}  // namespace
}  // namespace llm
