#pragma once

#include <cstdint>

#include "llm/models/activation.h"
#include "llm/models/config_reader.h"
#include "llm/models/head_options.h"
#include "sherd/runtime/core/dtype.h"

namespace llm {

// Sizes of a BERT encoder, in the letters of LlamaConfig.
struct BertConfig {
  int64_t vocabulary = 30522;  // V
  int64_t dim = 768;           // C
  int64_t layers = 12;
  int64_t heads = 12;       // H; divides dim
  int64_t ffn = 3072;       // F
  int64_t positions = 512;  // largest T
  int64_t token_types = 2;
  bool tied = true;  // the head of masked tokens is the embedding's table
  double norm_eps = 1e-12;
  Activation activation = Activation::kGelu;
  double dropout = 0.1;  // of the embeddings and each residual branch
  double attention_dropout = 0.1;
  double classifier_dropout = 0.1;
  sherd::DType dtype = sherd::DType::kF32;
  HeadOptions head = {};

  int64_t head_size() const { return dim / heads; }
};

// What a config.json of type "bert" says of sizes; head and dtype are the caller's. What is wrong
// is noted in the reader.
BertConfig ReadBertConfig(ConfigReader& reader);

}  // namespace llm
