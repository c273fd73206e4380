#include "llm/models/llama_config.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace llm {
namespace {

using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;
using sherd::kernels::RopeScaling;
using sherd::kernels::RopeScalingType;

constexpr std::pair<const char*, RopeScalingType> kRopeTypes[] = {
    {"default", RopeScalingType::kNone},
    {"linear", RopeScalingType::kLinear},
    {"dynamic", RopeScalingType::kDynamic},
    {"llama3", RopeScalingType::kLlama3},
    {"yarn", RopeScalingType::kYarn}};

// What a Mistral's config without a "sliding_window" means; null is none.
constexpr int64_t kMistralWindow = 4096;

// Whether layers see only so many tokens back. A window that is longer than the model's positions
// never acts.
void CheckWindow(const std::string& model_type, int64_t positions, ConfigReader& reader) {
  constexpr const char* kWhy = "layers would see only that many tokens back";
  if (const Json* const types = reader.Find("layer_types")) {
    const auto* const list = std::get_if<JsonArray>(&types->value);
    const bool full = list != nullptr && std::all_of(list->begin(), list->end(), [](const Json& t) {
                        const auto* const text = std::get_if<std::string>(&t.value);
                        return text != nullptr && *text == "full_attention";
                      });
    if (!full) reader.Refuse("layer_types", "every layer is \"full_attention\" here");
  }
  if (model_type == "mistral") {
    const int64_t absent = reader.Mentions("sliding_window") ? positions : kMistralWindow;
    if (reader.Integer("sliding_window", absent) < positions) {
      reader.Refuse("sliding_window", kWhy);
    }
  } else if (reader.Flag("use_sliding_window", false) &&
             reader.Integer("sliding_window", positions) < positions) {
    reader.Refuse("sliding_window", kWhy);
  }
}

// The options of one type. Fields that would change it and are not known here are refused.
RopeScaling ReadScaling(RopeScalingType type, int64_t positions, ConfigReader& reader) {
  RopeScaling scaling{.type = type};
  if (type == RopeScalingType::kNone) return scaling;
  scaling.factor = reader.Real("factor", std::nullopt, 1.0);
  if (type == RopeScalingType::kLinear) return scaling;
  scaling.original_max_position_embeddings =
      reader.Integer("original_max_position_embeddings", positions);
  if (type == RopeScalingType::kLlama3) {
    scaling.low_freq_factor = reader.Real("low_freq_factor", std::nullopt);
    scaling.high_freq_factor = reader.Real("high_freq_factor", std::nullopt);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      reader.Refuse("high_freq_factor", "it is not above low_freq_factor");
    }
  } else if (type == RopeScalingType::kYarn) {
    scaling.beta_fast = reader.Real("beta_fast", 32.0, 1e-6);
    scaling.beta_slow = reader.Real("beta_slow", 1.0, 1e-6);
    scaling.attention_factor = reader.Real("attention_factor", 0.0);
    if (scaling.beta_fast < scaling.beta_slow) {
      reader.Refuse("beta_fast", "it is below beta_slow");
    }
    for (const char* field : {"mscale", "mscale_all_dim"}) {
      if (reader.Has(field)) reader.Refuse(field, "");
    }
    reader.Expect("truncate", true);
  }
  return scaling;
}

// Both spellings: "rope_theta" with "rope_scaling", and "rope_parameters", which has both.
void ReadRope(ConfigReader& reader, LlamaConfig& config) {
  const char* const field = reader.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  config.rope_theta = reader.Real("rope_theta", 10000.0, 1.0);
  if (reader.Real("partial_rotary_factor", 1.0) != 1.0) {
    reader.Refuse("partial_rotary_factor", "all channels rotate here");
  }
  const JsonObject* const object = reader.Object(field);
  if (object == nullptr) return;
  ConfigReader rope = reader.Inside(field, *object);
  config.rope_theta = rope.Real("rope_theta", config.rope_theta, 1.0);
  if (rope.Real("partial_rotary_factor", 1.0) != 1.0) {
    rope.Refuse("partial_rotary_factor", "all channels rotate here");
  }
  const char* const key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(key, "default");
  const auto* const known = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                         [&](const auto& named) { return type == named.first; });
  if (known == std::end(kRopeTypes)) {
    rope.Refuse(key, "known are default, linear, dynamic, llama3 and yarn");
  } else if (!rope.Has(key) && !object->empty() && !rope.Has("rope_theta")) {
    reader.Refuse(field, "it has no rope_type");
  } else {
    config.rope = ReadScaling(known->second, config.positions, rope);
  }
  reader.Add(rope);
}

// The options of a type, as fields of "rope_scaling".
Json ScalingFields(const RopeScaling& scaling) {
  if (scaling.type == RopeScalingType::kNone) return {nullptr};
  const auto* const named =
      std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                   [&](const auto& type) { return type.second == scaling.type; });
  JsonObject fields;
  fields["rope_type"] = {std::string(named->first)};
  fields["factor"] = {scaling.factor};
  if (scaling.original_max_position_embeddings > 0) {
    fields["original_max_position_embeddings"] = {scaling.original_max_position_embeddings};
  }
  if (scaling.type == RopeScalingType::kLlama3) {
    fields["low_freq_factor"] = {scaling.low_freq_factor};
    fields["high_freq_factor"] = {scaling.high_freq_factor};
  } else if (scaling.type == RopeScalingType::kYarn) {
    fields["beta_fast"] = {scaling.beta_fast};
    fields["beta_slow"] = {scaling.beta_slow};
    if (scaling.attention_factor > 0.0) fields["attention_factor"] = {scaling.attention_factor};
  }
  return {std::move(fields)};
}

}  // namespace

bool IsLlamaType(const std::string& model_type) {
  constexpr const char* kTypes[] = {"llama", "mistral", "qwen2", "qwen3"};
  return std::find(std::begin(kTypes), std::end(kTypes), model_type) != std::end(kTypes);
}

LlamaConfig ReadLlamaConfig(const std::string& model_type, ConfigReader& reader) {
  LlamaConfig c;
  c.vocabulary = reader.Integer("vocab_size", std::nullopt);
  c.dim = reader.Integer("hidden_size", std::nullopt);
  c.layers = reader.Integer("num_hidden_layers", std::nullopt, 1, 4096);
  c.heads = reader.Integer("num_attention_heads", std::nullopt, 1, 4096);
  c.kv_heads = reader.Integer("num_key_value_heads", c.heads, 1, 4096);
  c.ffn = reader.Integer("intermediate_size", std::nullopt);
  c.positions = reader.Integer("max_position_embeddings", std::nullopt, 1, int64_t{1} << 24);
  c.tied = reader.Flag("tie_word_embeddings", false);
  c.norm_eps = reader.Real("rms_norm_eps", 1e-6);
  // Qwen3's heads have a size of their own unless the config says otherwise.
  c.head_dim = reader.Integer("head_dim", model_type == "qwen3" ? 128 : 0, 1, 256);
  c.attention_dropout = reader.Real("attention_dropout", 0.0, 0.0, 0.999);
  const bool bias = reader.Flag("attention_bias", false);
  if (model_type == "mistral" && bias) reader.Refuse("attention_bias", "");
  c.qkv_bias = model_type == "qwen2" || bias;
  c.out_bias = model_type != "qwen2" && bias;
  c.ffn_bias = reader.Flag("mlp_bias", false);
  c.qk_norm = model_type == "qwen3";
  const std::string activation = reader.Text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") reader.Refuse("hidden_act", "known is silu");
  if (c.heads % c.kv_heads != 0) {
    reader.Refuse("num_key_value_heads", absl::StrCat("it does not divide ", c.heads, " heads"));
  }
  if (c.head_dim == 0 && c.dim % c.heads != 0) {
    reader.Refuse("num_attention_heads", absl::StrCat("it does not divide hidden_size ", c.dim));
  } else if (c.head_size() % 2 != 0 || c.head_size() > 256) {
    reader.Refuse(reader.Has("head_dim") ? "head_dim" : "num_attention_heads",
                  absl::StrCat("heads of size ", c.head_size(), ", not even and at most 256"));
  }
  CheckWindow(model_type, c.positions, reader);
  ReadRope(reader, c);
  return c;
}

std::string LlamaTypeOf(const LlamaConfig& c) {
  if (c.qk_norm) return "qwen3";
  return c.qkv_bias && !c.out_bias ? "qwen2" : "llama";
}

JsonObject LlamaFields(const LlamaConfig& c) {
  JsonObject fields;
  fields["vocab_size"] = {c.vocabulary};
  fields["hidden_size"] = {c.dim};
  fields["num_hidden_layers"] = {c.layers};
  fields["num_attention_heads"] = {c.heads};
  fields["num_key_value_heads"] = {c.kv_heads};
  fields["intermediate_size"] = {c.ffn};
  fields["max_position_embeddings"] = {c.positions};
  fields["tie_word_embeddings"] = {c.tied};
  fields["rms_norm_eps"] = {c.norm_eps};
  fields["rope_theta"] = {c.rope_theta};
  fields["rope_scaling"] = ScalingFields(c.rope);
  fields["hidden_act"] = {std::string("silu")};
  fields["head_dim"] = {c.head_size()};
  fields["attention_bias"] = {c.qkv_bias && c.out_bias};
  fields["mlp_bias"] = {c.ffn_bias};
  fields["attention_dropout"] = {c.attention_dropout};
  return fields;
}

}  // namespace llm
