#pragma once

#include <deque>

#include "classify/options.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/runtime/kernels/rope.h"

namespace classify {

inline constexpr int64_t kDim = 32, kHeads = 4, kLayers = 2;

// Attention that reads no padding, then SiLU between two products, each behind a norm and added.
class Block : public sherd::Module {
 public:
  Block(const Options& options, const sherd::kernels::RopeTables& rope);
  // Shapes: x and result [B, T, C], mask [B, T].
  sherd::Variable operator()(const sherd::Variable& x, const sherd::Tensor& mask);

 private:
  const Options options_;
  const sherd::kernels::RopeTables rope_;
  sherd::RmsNormLayer attention_norm_, ffn_norm_;
  sherd::LinearLayer qkv_, out_, up_, down_;
};

// Blocks over an embedding, and a head over one pooled token.
class Classifier : public sherd::Module {
 public:
  Classifier(const Options& options, const sherd::Device& device);
  // Shapes: tokens and mask [B, T], pooled logits [B, kClasses].
  sherd::Variable operator()(const sherd::Tensor& tokens, const sherd::Tensor& mask);
  std::deque<Block>& blocks() { return blocks_; }

 private:
  const Options options_;
  sherd::EmbeddingLayer embedding_;
  std::deque<Block> blocks_;
  sherd::RmsNormLayer norm_;
  sherd::LinearLayer head_;
};

}  // namespace classify
