#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "llm/models/attention_heads.h"
#include "llm/models/decoder.h"
#include "llm/models/gpt2_config.h"
#include "llm/models/text_model.h"
#include "sherd/autograd/nn/layers.h"

namespace llm {

// One layer: attention, then two linear layers, each behind a norm and added to what came in.
//
// Parameters, each with a "bias" beside its "weight": "attention_norm", "qkv" [3 C, C], "out"
// [C, C], "ffn_norm", "up" [F, C], "down" [C, F]. Folders have the matrices transposed.
class Gpt2Block : public sherd::Module {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t index);
  // Shapes: x and result [B, T, C].
  sherd::Variable operator()(const sherd::Variable& x, const LayerInput& input);
  // Appends the names of its parameters, which begin with `prefix`.
  void AppendWeights(const std::string& prefix, std::vector<NamedWeight>& out) const;

 private:
  sherd::Variable Attend(const sherd::Variable& x, const LayerInput& input);

  const Gpt2Config config_;
  const double scale_;
  sherd::LayerNormLayer attention_norm_;
  sherd::LinearLayer qkv_;
  sherd::LinearLayer out_;
  sherd::LayerNormLayer ffn_norm_;
  sherd::LinearLayer up_;
  sherd::LinearLayer down_;
};

// A decoder with learned positions. With documents (TextInput) it needs the tokens' positions.
//
// Parameters: those of Decoder, and between them "position_embedding.weight" [positions, C],
// "block0", "block1", ..., "norm".
// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
class Gpt2 : public Decoder {
 public:
  explicit Gpt2(const Gpt2Config& config);

  const Gpt2Config& config() const { return config_; }
  std::string_view base_prefix() const override { return "transformer."; }

 private:
  sherd::Variable Hidden(const TextInput& input) override;
  std::string EmbeddingName() const override { return "transformer.wte.weight"; }
  void AppendInner(std::vector<NamedWeight>& out) const override;

  const Gpt2Config config_;
  sherd::EmbeddingLayer position_embedding_;
  std::deque<Gpt2Block> blocks_;
  sherd::LayerNormLayer norm_;
};

}  // namespace llm
