#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/models/bert_config.h"
#include "llm/models/text_model.h"
#include "sherd/autograd/nn/layers.h"

namespace llm {

// One layer: attention in both directions, then two linear layers, each added to what came in and
// then normalised.
//
// Parameters, each with a "bias" beside its "weight": "qkv" [3 C, C], "out" [C, C],
// "attention_norm", "up" [F, C], "down" [C, F], "ffn_norm".
class BertBlock : public sherd::Module {
 public:
  explicit BertBlock(const BertConfig& config);
  // Shapes: x and result [B, T, C]; cu_seqlens and mask as TextInput's.
  sherd::Variable operator()(const sherd::Variable& x, const sherd::Tensor& cu_seqlens,
                             const sherd::Tensor& mask);
  // Appends the names of its parameters, which begin with `prefix`.
  void AppendWeights(const std::string& prefix, std::vector<NamedWeight>& out) const;

 private:
  sherd::Variable Attend(const sherd::Variable& x, const sherd::Tensor& cu_seqlens,
                         const sherd::Tensor& mask);

  const BertConfig config_;
  sherd::LinearLayer qkv_;
  sherd::LinearLayer out_;
  sherd::LayerNormLayer attention_norm_;
  sherd::LinearLayer up_;
  sherd::LinearLayer down_;
  sherd::LayerNormLayer ffn_norm_;
};

// An encoder: embeds rows, classifies them, or predicts masked tokens (Head::kLanguageModel).
//
// Parameters: "embedding", "position_embedding", "token_type_embedding", "embedding_norm",
// "block0", "block1", ...; of the heads "transform", "transform_norm", "head.bias" [V] and, untied,
// "head.weight" [V, C]; "pooler" and "score" of a classifier, which looks at the first token of a
// row. An embedding has the "pooler" too, which its folder has, and does not use it.
// Source: Devlin et al. 2019, "BERT".
class Bert : public TextModel {
 public:
  explicit Bert(const BertConfig& config);

  const BertConfig& config() const { return config_; }
  int64_t positions() const override { return config_.positions; }
  int64_t vocabulary() const override { return config_.vocabulary; }
  std::vector<NamedWeight> Weights() const override;
  std::string_view base_prefix() const override { return "bert."; }
  std::vector<std::pair<std::string, std::string>> TiedNames() const override;

 private:
  // The last step of a head of masked tokens.
  class TokenHead : public sherd::Module {
   public:
    explicit TokenHead(const BertConfig& config);
    sherd::Parameter weight;  // undefined if tied
    sherd::Parameter bias;
  };

  sherd::Variable Hidden(const TextInput& input) override;
  sherd::Variable Logits(const sherd::Variable& hidden) override;
  sherd::Variable Classes(const sherd::Variable& hidden, const sherd::Tensor& mask) override;

  const BertConfig config_;
  sherd::EmbeddingLayer embedding_;
  sherd::EmbeddingLayer position_embedding_;
  sherd::EmbeddingLayer token_type_embedding_;
  sherd::LayerNormLayer embedding_norm_;
  std::deque<BertBlock> blocks_;
  std::optional<sherd::LinearLayer> pooler_;
  std::optional<sherd::LinearLayer> score_;
  std::optional<sherd::LinearLayer> transform_;
  std::optional<sherd::LayerNormLayer> transform_norm_;
  std::optional<TokenHead> token_head_;
};

}  // namespace llm
