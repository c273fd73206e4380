#pragma once

#include <memory>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/support/tensors.h"

namespace sherd::testing {

// A residual block with a gated unit and dropout. Counts how often its body ran.
class Block : public Module {
 public:
  static constexpr int64_t kChannels = 8;
  explicit Block(DType dtype)
      : norm_(kChannels, 1e-5, dtype),
        up_(kChannels, 2 * kFfn, Initializer::Normal(0.3), dtype),
        down_(kFfn, kChannels, Initializer::Normal(0.3), dtype) {
    RegisterModule("norm", norm_);
    RegisterModule("up", up_);
    RegisterModule("down", down_);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Block& self, const Variable& x) {
          ++self.runs;
          const std::array<int64_t, 2> halves = {kFfn, kFfn};
          const std::vector<Variable> parts = Split(self.up_(self.norm_(x)), 1, halves);
          return Add(x, Dropout(self.down_(SiluMul(parts[0], parts[1])), 0.2));
        },
        x);
  }
  const Parameter& up() const { return up_.weight(); }
  int runs = 0;

 private:
  static constexpr int64_t kFfn = 12;
  RmsNormLayer norm_;
  LinearLayer up_;
  LinearLayer down_;
};

// Blocks that are called one after another, `repeats` times; token ids come in.
class Stack : public Module {
 public:
  Stack(DType dtype, int blocks, int repeats)
      : repeats_(repeats), embedding_(7, Block::kChannels, Initializer::Normal(1.0), dtype) {
    RegisterModule("embedding", embedding_);
    for (int i = 0; i < blocks; ++i) {
      blocks_.push_back(std::make_unique<Block>(dtype));
      RegisterModule("block" + std::to_string(i), *blocks_.back());
    }
  }
  Variable operator()(const Variable& ids) {
    return Call(
        *this,
        [](Stack& self, const Variable& ids) {
          Variable x = self.embedding_(ids);
          for (int r = 0; r < self.repeats_; ++r) {
            for (auto& block : self.blocks_) x = (*block)(x);
          }
          return x;
        },
        ids);
  }
  Block& block(int i) { return *blocks_[static_cast<size_t>(i)]; }
  EmbeddingLayer& embedding() { return embedding_; }

 private:
  int repeats_;
  EmbeddingLayer embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace sherd::testing
