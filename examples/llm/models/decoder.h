#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llm/models/attention_heads.h"
#include "llm/models/head_options.h"
#include "llm/models/text_model.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/runtime/core/dtype.h"

namespace llm {

// What Llama and GPT-2 begin and end with: a table of tokens, which may be the head as well, and
// heads that are one matrix.
//
// Parameters: "embedding.weight" [V, C] before all others; behind them, as the head asks for,
// "head.weight" [V, C] of a language model that is not tied, or "score.weight" [labels, C]. A
// classifier looks at the last token of a row.
class Decoder : public TextModel {
 public:
  int64_t positions() const override { return sizes_.positions; }
  int64_t vocabulary() const override { return sizes_.vocabulary; }
  std::vector<NamedWeight> Weights() const override;
  std::vector<std::pair<std::string, std::string>> TiedNames() const override;

 protected:
  // `config` has the fields that LlamaConfig and Gpt2Config have alike.
  template <typename Config>
  explicit Decoder(const Config& config)
      : Decoder(Sizes{config.vocabulary, config.dim, config.positions, config.tied, config.dtype,
                      config.head}) {}
  // Registers what the head consists of; a constructor calls it at its end.
  void RegisterHead();

  sherd::Variable Embedded(const sherd::Variable& tokens) { return embedding_(tokens); }
  // What layers make of hidden states, one after the other.
  template <typename Blocks>
  sherd::Variable RunBlocks(Blocks& blocks, sherd::Variable h, const TextInput& input) {
    LayerInput with = {
        .cu_seqlens = input.cu_seqlens, .mask = input.mask, .cache = input.cache, .layer = 0};
    for (auto& block : blocks) {
      h = block(h, with);
      ++with.layer;
    }
    return h;
  }
  // The embedding's name in a folder.
  virtual std::string EmbeddingName() const = 0;
  // Appends what a folder has between the embedding and the head.
  virtual void AppendInner(std::vector<NamedWeight>& out) const = 0;

 private:
  struct Sizes {
    int64_t vocabulary = 0;  // V
    int64_t dim = 0;         // C
    int64_t positions = 0;   // largest T
    bool tied = false;
    sherd::DType dtype = sherd::DType::kF32;
    HeadOptions head = {};
  };
  explicit Decoder(const Sizes& sizes);

  bool has_tied_head() const { return head().kind == Head::kLanguageModel && sizes_.tied; }
  sherd::Variable Logits(const sherd::Variable& hidden) override;
  sherd::Variable Classes(const sherd::Variable& hidden, const sherd::Tensor& mask) override;

  const Sizes sizes_;
  sherd::EmbeddingLayer embedding_;
  std::optional<sherd::LinearLayer> token_head_;  // of tokens
  std::optional<sherd::LinearLayer> score_;       // of classes
};

}  // namespace llm
