#include "classify/model.h"

#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "classify/data.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/loss/pooling.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"

namespace classify {

using sherd::Initializer;
using sherd::Tensor;
using sherd::Variable;

Block::Block(const Options& o, const sherd::kernels::RopeTables& rope)
    : options_(o),
      rope_(rope),
      attention_norm_(kDim),
      ffn_norm_(kDim),
      qkv_(kDim, 3 * kDim, Initializer::Normal(0.2)),
      out_(kDim, kDim, Initializer::Normal(0.1)),
      up_(kDim, 2 * kDim, Initializer::Normal(0.2)),
      down_(2 * kDim, kDim, Initializer::Normal(0.1)) {
  RegisterModule("attention_norm", attention_norm_);
  RegisterModule("qkv", qkv_);
  RegisterModule("out", out_);
  RegisterModule("ffn_norm", ffn_norm_);
  RegisterModule("up", up_);
  RegisterModule("down", down_);
}

Variable Block::operator()(const Variable& x, const Tensor& mask) {
  return Call(
      *this,
      [](Block& self, const Variable& x, const Tensor& mask) {
        const auto by_head = [&](const Variable& v) {
          return Reshape(v, {x.dim(0), x.dim(1), kHeads, kDim / kHeads});
        };
        const std::vector<Variable> qkv =
            Split(self.qkv_(self.attention_norm_(x)), 2, std::array{kDim, kDim, kDim});
        const Variable q = Rope(by_head(qkv[0]), self.rope_), k = Rope(by_head(qkv[1]), self.rope_);
        const Variable seen = Attention(q, k, by_head(qkv[2]),
                                        {.causal = !self.options_.encoder,
                                         .scale = 1.0 / std::sqrt(1.0 * kDim / kHeads),
                                         .key_mask = mask,
                                         .dropout = self.options_.dropout});
        const Variable h = Add(x, self.out_(Reshape(seen, x.shape())));
        return Add(h, self.down_(Silu(self.up_(self.ffn_norm_(h)))));
      },
      x, mask);
}

Classifier::Classifier(const Options& o, const sherd::Device& device)
    : options_(o),
      embedding_(kVocabulary, kDim, Initializer::Normal(1.0)),
      norm_(kDim),
      head_(kDim, kClasses, Initializer::Normal(0.2)) {
  const auto rope =
      sherd::kernels::MakeRopeTables(device, sherd::DType::kF32, o.seq, kDim / kHeads);
  RegisterModule("embedding", embedding_);
  for (int64_t i = 0; i < kLayers; ++i) {
    RegisterModule(absl::StrCat("block", i), blocks_.emplace_back(o, rope));
  }
  RegisterModule("norm", norm_);
  RegisterModule("head", head_);
}

Variable Classifier::operator()(const Tensor& tokens, const Tensor& mask) {
  return Call(
      *this,
      [](Classifier& self, const Tensor& tokens, const Tensor& mask) {
        Variable h = self.embedding_(tokens);
        for (Block& block : self.blocks_) h = block(h, mask);
        h = self.options_.encoder ? FirstTokens(h) : LastTokens(h, mask);
        return self.head_(self.norm_(h));
      },
      tokens, mask);
}

}  // namespace classify
