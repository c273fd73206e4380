#pragma once

#include <cstdint>

namespace llm {

// What a model makes of the hidden states of its last layer.
enum class Head : uint8_t {
  kLanguageModel,   // logits of every position: [B, T, V]
  kClassification,  // logits of every row: [B, labels]
  kEmbedding        // a vector for every row: [B, C]
};

// Which hidden states of a row an embedding is made of. Padding never counts.
enum class Pooling : uint8_t {
  kMean,   // the mean of all
  kFirst,  // the first, as encoders do
  kLast    // the last, as decoders do
};

struct HeadOptions {
  Head kind = Head::kLanguageModel;
  int64_t labels = 2;                // of a classification
  Pooling pooling = Pooling::kMean;  // of an embedding
  bool normalize = false;            // whether embeddings have length 1
};

}  // namespace llm
