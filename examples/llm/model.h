#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/models/attention_heads.h"
#include "llm/models/decoder.h"
#include "llm/models/llama_config.h"
#include "llm/models/text_model.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/kernels/rope.h"

namespace llm {

// One decoder layer: attention with rotary positions and grouped queries, then SwiGLU, each behind
// a norm and added to what came in.
//
// The projections that read the same input are fused: queries, keys and values are slices of one
// product, gate and up are halves of another. Parameters: "attention_norm.weight" [C], "qkv.weight"
// [(H + 2 K) D, C], "out.weight" [C, H D], "ffn_norm.weight" [C], "gate_up.weight" [2 F, C],
// "down.weight" [C, F]; where the config says so "q_norm.weight" and "k_norm.weight" [D], and a
// "bias" beside a weight.
class Block : public sherd::Module {
 public:
  Block(const LlamaConfig& config, const sherd::kernels::RopeTables& rope);
  // Shapes: x and result [B, T, C].
  sherd::Variable operator()(const sherd::Variable& x, const LayerInput& input);
  // Appends the names of its parameters, which begin with `prefix`.
  void AppendWeights(const std::string& prefix, std::vector<NamedWeight>& out) const;

 private:
  sherd::Variable Attend(const sherd::Variable& x, const LayerInput& input);
  sherd::Variable FeedForward(const sherd::Variable& x);

  const LlamaConfig config_;
  const sherd::kernels::RopeTables rope_;
  sherd::RmsNormLayer attention_norm_;
  sherd::LinearLayer qkv_;
  std::optional<sherd::RmsNormLayer> q_norm_;
  std::optional<sherd::RmsNormLayer> k_norm_;
  sherd::LinearLayer out_;
  sherd::RmsNormLayer ffn_norm_;
  sherd::LinearLayer gate_up_;
  sherd::LinearLayer down_;
};

// A decoder that predicts the next token at every position, or classifies or embeds rows: Llama,
// Mistral, Qwen2, Qwen3, SmolLM2.
//
// Weights are drawn from a normal distribution of deviation 0.02; those that lead back into the
// residual stream are smaller by sqrt(2 layers), so that its size does not grow with depth.
// Parameters: those of Decoder, and between them "block0", "block1", ..., "norm.weight" [C]. With
// documents (TextInput), positions count from the row's beginning even so: rotary ones act through
// differences. Source: Touvron et al. 2023; the scale of the initial values: Radford et al. 2019.
class Llama : public Decoder {
 public:
  // Builds the tables of positions on `device`; parameters get their memory from Initialize.
  // Errors: kInvalidArgument for rope options, see MakeRopeTables.
  Llama(const LlamaConfig& config, const sherd::Device& device);

  std::deque<Block>& blocks() { return blocks_; }
  const LlamaConfig& config() const { return config_; }

  std::string_view base_prefix() const override { return "model."; }

 private:
  sherd::Variable Hidden(const TextInput& input) override;
  std::string EmbeddingName() const override { return "model.embed_tokens.weight"; }
  void AppendInner(std::vector<NamedWeight>& out) const override;

  const LlamaConfig config_;
  std::deque<Block> blocks_;
  sherd::RmsNormLayer norm_;
};

}  // namespace llm
