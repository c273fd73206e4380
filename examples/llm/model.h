#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "sherd/autograd/module.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/rope.h"

namespace llm {

// Sizes of a model. Letters: B batch, T tokens, C channels, H heads, K key and value heads, D head
// size, F inner width of the feed-forward part, V vocabulary.
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

  int64_t head_size() const { return dim / heads; }
};

// One decoder layer: attention with rotary positions and grouped queries, then SwiGLU, each behind
// a norm and added to what came in.
//
// The projections that read the same input are fused: queries, keys and values are slices of one
// product, gate and up are halves of another. Parameters: "attention_norm.weight" [C], "qkv.weight"
// [(H + 2 K) D, C], "out.weight" [C, H D], "ffn_norm.weight" [C], "gate_up.weight" [2 F, C],
// "down.weight" [C, F].
class Block : public sherd::Module {
 public:
  Block(const LlamaConfig& config, const sherd::kernels::RopeTables& rope);
  // Shapes: x and result [B, T, C]; cu_seqlens as the model's.
  sherd::Variable operator()(const sherd::Variable& x, const sherd::Tensor& cu_seqlens);

 private:
  sherd::Variable Attend(const sherd::Variable& x, const sherd::Tensor& cu_seqlens);
  sherd::Variable FeedForward(const sherd::Variable& x);

  const LlamaConfig config_;
  const sherd::kernels::RopeTables rope_;
  sherd::RmsNormLayer attention_norm_;
  sherd::LinearLayer qkv_;
  sherd::LinearLayer out_;
  sherd::RmsNormLayer ffn_norm_;
  sherd::LinearLayer gate_up_;
  sherd::LinearLayer down_;
};

// A decoder that predicts the next token at every position.
//
// Weights are drawn from a normal distribution of deviation 0.02; those that lead back into the
// residual stream are smaller by sqrt(2 layers), so that its size does not grow with depth.
// Parameters: "embedding.weight" [V, C], "block0", "block1", ..., "norm.weight" [C] and, if untied,
// "head.weight" [V, C].
// Source: Touvron et al. 2023; the scale of the initial values: Radford et al. 2019.
class Llama : public sherd::Module {
 public:
  // Builds the tables of positions on `device`; parameters get their memory from Initialize.
  Llama(const LlamaConfig& config, const sherd::Device& device);
  // Shapes: tokens [B, T] of i32 or i64 with T at most config.positions, result [B, T, V].
  // With `cu_seqlens` (data::Batch), tokens see those of their own document alone. Positions count
  // from the row's beginning even so: rotary ones act through differences.
  sherd::Variable operator()(const sherd::Variable& tokens, const sherd::Tensor& cu_seqlens = {});

  std::deque<Block>& blocks() { return blocks_; }
  const LlamaConfig& config() const { return config_; }
  // Elements of all parameters, each once.
  int64_t size() const;

 private:
  const LlamaConfig config_;
  sherd::EmbeddingLayer embedding_;
  std::deque<Block> blocks_;
  sherd::RmsNormLayer norm_;
  std::optional<sherd::LinearLayer> head_;
};

}  // namespace llm
