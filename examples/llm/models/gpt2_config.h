#pragma once

#include <cstdint>

#include "llm/models/activation.h"
#include "llm/models/config_reader.h"
#include "llm/models/head_options.h"
#include "sherd/runtime/core/dtype.h"

namespace llm {

// Sizes of a GPT-2, in the letters of LlamaConfig.
struct Gpt2Config {
  int64_t vocabulary = 50257;  // V
  int64_t dim = 768;           // C
  int64_t layers = 12;
  int64_t heads = 12;        // H; divides dim
  int64_t ffn = 3072;        // F
  int64_t positions = 1024;  // largest T
  bool tied = true;          // the head is the embedding's table
  double norm_eps = 1e-5;
  Activation activation = Activation::kGeluTanh;
  bool scale_attention = true;  // scores are divided by sqrt(D)
  bool scale_by_layer = false;  // scores of layer i are divided by i + 1
  double embedding_dropout = 0.0;
  double attention_dropout = 0.0;
  double residual_dropout = 0.0;
  sherd::DType dtype = sherd::DType::kF32;
  HeadOptions head = {};

  int64_t head_size() const { return dim / heads; }
};

// What a config.json of type "gpt2" says of sizes; head and dtype are the caller's. What is wrong
// is noted in the reader.
Gpt2Config ReadGpt2Config(ConfigReader& reader);

}  // namespace llm
