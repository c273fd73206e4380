#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/kernels/rope.h"

namespace sherd::testing {

// Attention with grouped queries and a gated unit, with dropout on both residual branches. Sizes
// are odd where they can be, so that no chunk border falls on a parameter's.
class GridBlock : public Module {
 public:
  static constexpr int64_t kChannels = 6;
  explicit GridBlock(DType dtype, std::shared_ptr<const kernels::RopeTables> tables);
  // Shapes: x and result [B, T, kChannels].
  Variable operator()(const Variable& x);

 private:
  RmsNormLayer norm_attention_;
  RmsNormLayer norm_ffn_;
  LinearLayer qkv_;
  LinearLayer out_;
  LinearLayer gate_up_;
  LinearLayer down_;
  std::shared_ptr<const kernels::RopeTables> tables_;
};

// The small model of the parity grid: a tied embedding, a layer used twice, a frozen layer, a layer
// that is not used in every step, dropout, odd sizes.
class GridModel : public Module {
 public:
  static constexpr int64_t kVocabulary = 11;
  static constexpr int64_t kTokens = 5;
  GridModel(const Device& device, DType dtype);
  // Shapes: tokens i64 [B, kTokens], result [B, kTokens, kVocabulary].
  Variable operator()(const Variable& tokens, bool use_optional);

  GridBlock& twice() { return *twice_; }
  GridBlock& plain() { return *plain_; }
  GridBlock& frozen() { return *frozen_; }
  GridBlock& optional() { return *optional_; }
  std::vector<GridBlock*> blocks() {
    return {twice_.get(), plain_.get(), frozen_.get(), optional_.get()};
  }

 private:
  EmbeddingLayer embedding_;
  RmsNormLayer norm_;
  std::unique_ptr<GridBlock> twice_;
  std::unique_ptr<GridBlock> plain_;
  std::unique_ptr<GridBlock> frozen_;
  std::unique_ptr<GridBlock> optional_;
};

// The samples of one forward call.
struct GridCall {
  Tensor tokens;  // i64 [B, kTokens]
  Tensor labels;
  std::vector<int64_t> samples;
};

// The forward calls before one backward.
struct GridBatch {
  std::vector<GridCall> calls;
};

// The micro-batches of one rank for one step of kGridSamples samples. Sample s belongs to call s %
// calls, in every split, so that dropout masks are the same.
inline constexpr int64_t kGridSamples = 36;
std::vector<GridBatch> GridBatches(const Device& device, int64_t step, int ranks, int rank,
                                   int micro_batches, int calls);

}  // namespace sherd::testing
