#include "llm/model.h"

#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"

namespace llm {
namespace {

using sherd::Initializer;
using sherd::Tensor;
using sherd::Variable;

constexpr double kNormEps = 1e-5;
constexpr double kDeviation = 0.02;

Initializer Usual() { return Initializer::Normal(kDeviation); }

Initializer IntoResidual(const LlamaConfig& c) {
  return Initializer::Normal(kDeviation / std::sqrt(2.0 * static_cast<double>(c.layers)));
}

// Channels of the fused projection.
int64_t QkvSize(const LlamaConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_size(); }

}  // namespace

Block::Block(const LlamaConfig& c, const sherd::kernels::RopeTables& rope)
    : config_(c),
      rope_(rope),
      attention_norm_(c.dim, kNormEps, c.dtype),
      qkv_(c.dim, QkvSize(c), Usual(), c.dtype),
      out_(c.dim, c.dim, IntoResidual(c), c.dtype),
      ffn_norm_(c.dim, kNormEps, c.dtype),
      gate_up_(c.dim, 2 * c.ffn, Usual(), c.dtype),
      down_(c.ffn, c.dim, IntoResidual(c), c.dtype) {
  RegisterModule("attention_norm", attention_norm_);
  RegisterModule("qkv", qkv_);
  RegisterModule("out", out_);
  RegisterModule("ffn_norm", ffn_norm_);
  RegisterModule("gate_up", gate_up_);
  RegisterModule("down", down_);
}

Variable Block::operator()(const Variable& x, const Tensor& cu_seqlens) {
  return Call(
      *this,
      [](Block& self, const Variable& x, const Tensor& cu_seqlens) {
        const double p = self.config_.dropout;
        const Variable h = Add(x, Dropout(self.Attend(self.attention_norm_(x), cu_seqlens), p));
        return Add(h, Dropout(self.FeedForward(self.ffn_norm_(h)), p));
      },
      x, cu_seqlens);
}

Variable Block::Attend(const Variable& x, const Tensor& cu_seqlens) {
  const int64_t d = config_.head_size();
  const int64_t heads = config_.heads;
  const int64_t kv_heads = config_.kv_heads;
  const std::array<int64_t, 3> sizes = {heads * d, kv_heads * d, kv_heads * d};
  const std::vector<Variable> qkv = Split(qkv_(x), 2, sizes);
  const auto by_head = [&](const Variable& v, int64_t count) {
    return Reshape(v, {x.dim(0), x.dim(1), count, d});
  };
  const Variable q = Rope(by_head(qkv[0], heads), rope_);
  const Variable k = Rope(by_head(qkv[1], kv_heads), rope_);
  const Variable v = by_head(qkv[2], kv_heads);
  const Variable seen = Attention(
      q, k, v,
      {.causal = true, .scale = 1.0 / std::sqrt(static_cast<double>(d)), .cu_seqlens = cu_seqlens});
  return out_(Reshape(seen, x.shape()));
}

Variable Block::FeedForward(const Variable& x) {
  const std::array<int64_t, 2> sizes = {config_.ffn, config_.ffn};
  const std::vector<Variable> gate_up = Split(gate_up_(x), 2, sizes);
  return down_(SiluMul(gate_up[0], gate_up[1]));
}

Llama::Llama(const LlamaConfig& c, const sherd::Device& device)
    : config_(c),
      embedding_(c.vocabulary, c.dim, Usual(), c.dtype),
      norm_(c.dim, kNormEps, c.dtype) {
  const sherd::kernels::RopeTables rope =
      sherd::kernels::MakeRopeTables(device, c.dtype, c.positions, c.head_size());
  RegisterModule("embedding", embedding_);
  for (int64_t i = 0; i < c.layers; ++i) {
    RegisterModule(absl::StrCat("block", i), blocks_.emplace_back(c, rope));
  }
  RegisterModule("norm", norm_);
  if (!c.tied) {
    head_.emplace(c.dim, c.vocabulary, Usual(), c.dtype);
    RegisterModule("head", *head_);
  }
}

Variable Llama::operator()(const Variable& tokens, const Tensor& cu_seqlens) {
  return Call(
      *this,
      [](Llama& self, const Variable& tokens, const Tensor& cu_seqlens) {
        Variable h = self.embedding_(tokens);
        for (Block& block : self.blocks_) h = block(h, cu_seqlens);
        h = self.norm_(h);
        return self.head_ ? (*self.head_)(h) : Linear(h, self.embedding_.weight());
      },
      tokens, cu_seqlens);
}

int64_t Llama::size() const {
  int64_t elems = 0;
  for (const sherd::Parameter& parameter : parameters()) elems += parameter.numel();
  return elems;
}

}  // namespace llm
