#pragma once

#include <cstdint>
#include <string>

#include "llm/models/config_reader.h"
#include "llm/models/head_options.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/io/json.h"
#include "sherd/runtime/kernels/rope_scaling.h"

namespace llm {

// Sizes of a model, and what Llama's kin do in their own ways. Letters: B batch, T tokens, C
// channels, H heads, K key and value heads, D head size, F inner width of the feed-forward part, V
// vocabulary.
struct LlamaConfig {
  int64_t vocabulary = 256;  // V
  int64_t dim = 128;         // C
  int64_t layers = 4;
  int64_t heads = 4;        // H; divides dim
  int64_t kv_heads = 2;     // K; divides heads
  int64_t ffn = 352;        // F
  int64_t positions = 256;  // largest T
  bool tied = true;         // the head is the embedding's table
  double dropout = 0.0;     // of each residual branch
  sherd::DType dtype = sherd::DType::kF32;

  int64_t head_dim = 0;  // D; 0: dim / heads
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  sherd::kernels::RopeScaling rope = {};
  bool qkv_bias = false;           // of queries, keys and values, as in Qwen2
  bool out_bias = false;           // of what attention leads out through
  bool ffn_bias = false;           // of gate, up and down
  bool qk_norm = false;            // queries and keys normalised in each head, as in Qwen3
  double attention_dropout = 0.0;  // of the probabilities
  HeadOptions head = {};

  int64_t head_size() const { return head_dim > 0 ? head_dim : dim / heads; }
};

// Whether Llama (model.h) is what a config of this "model_type" describes.
bool IsLlamaType(const std::string& model_type);

// What a config.json of such a type says of sizes; head and dtype are the caller's. What is wrong
// is noted in the reader.
LlamaConfig ReadLlamaConfig(const std::string& model_type, ConfigReader& reader);

// The same as fields of a config.json, "model_type" and "architectures" excepted.
sherd::JsonObject LlamaFields(const LlamaConfig& config);

// The type that such a config has: "llama", or one of its kin that has what Llama has not.
std::string LlamaTypeOf(const LlamaConfig& config);

}  // namespace llm
