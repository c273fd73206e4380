#include "llm/model.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llm/models/named_weights.h"
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

constexpr double kDeviation = 0.02;

Initializer Usual() { return Initializer::Normal(kDeviation); }

Initializer IntoResidual(const LlamaConfig& c) {
  return Initializer::Normal(kDeviation / std::sqrt(2.0 * static_cast<double>(c.layers)));
}

// Channels of the fused projection.
int64_t QkvSize(const LlamaConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_size(); }

sherd::Bias BiasIf(bool wanted) { return wanted ? sherd::Bias::kZero : sherd::Bias::kNone; }

}  // namespace

Block::Block(const LlamaConfig& c, const sherd::kernels::RopeTables& rope)
    : config_(c),
      rope_(rope),
      attention_norm_(c.dim, c.norm_eps, c.dtype),
      qkv_(c.dim, QkvSize(c), Usual(), c.dtype, BiasIf(c.qkv_bias)),
      out_(c.heads * c.head_size(), c.dim, IntoResidual(c), c.dtype, BiasIf(c.out_bias)),
      ffn_norm_(c.dim, c.norm_eps, c.dtype),
      gate_up_(c.dim, 2 * c.ffn, Usual(), c.dtype, BiasIf(c.ffn_bias)),
      down_(c.ffn, c.dim, IntoResidual(c), c.dtype, BiasIf(c.ffn_bias)) {
  RegisterModule("attention_norm", attention_norm_);
  RegisterModule("qkv", qkv_);
  if (c.qk_norm) {
    RegisterModule("q_norm", q_norm_.emplace(c.head_size(), c.norm_eps, c.dtype));
    RegisterModule("k_norm", k_norm_.emplace(c.head_size(), c.norm_eps, c.dtype));
  }
  RegisterModule("out", out_);
  RegisterModule("ffn_norm", ffn_norm_);
  RegisterModule("gate_up", gate_up_);
  RegisterModule("down", down_);
}

Variable Block::operator()(const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
  return Call(
      *this,
      [](Block& self, const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
        const double p = self.config_.dropout;
        const Variable h =
            Add(x, Dropout(self.Attend(self.attention_norm_(x), cu_seqlens, mask), p));
        return Add(h, Dropout(self.FeedForward(self.ffn_norm_(h)), p));
      },
      x, cu_seqlens, mask);
}

Variable Block::Attend(const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
  const int64_t d = config_.head_size();
  const int64_t heads = config_.heads;
  const int64_t kv_heads = config_.kv_heads;
  const std::array<int64_t, 3> sizes = {heads * d, kv_heads * d, kv_heads * d};
  const std::vector<Variable> qkv = Split(qkv_(x), 2, sizes);
  const auto by_head = [&](const Variable& v, int64_t count) {
    return Reshape(v, {x.dim(0), x.dim(1), count, d});
  };
  const auto rotated = [&](Variable v, std::optional<sherd::RmsNormLayer>& norm) {
    return Rope(norm ? (*norm)(v) : v, rope_);
  };
  const Variable seen =
      Attention(rotated(by_head(qkv[0], heads), q_norm_),
                rotated(by_head(qkv[1], kv_heads), k_norm_), by_head(qkv[2], kv_heads),
                {.causal = true,
                 .scale = 1.0 / std::sqrt(static_cast<double>(d)),
                 .key_mask = mask,
                 .cu_seqlens = cu_seqlens,
                 .dropout = config_.attention_dropout});
  return out_(Reshape(seen, {x.dim(0), x.dim(1), heads * d}));
}

Variable Block::FeedForward(const Variable& x) {
  const std::array<int64_t, 2> sizes = {config_.ffn, config_.ffn};
  const std::vector<Variable> gate_up = Split(gate_up_(x), 2, sizes);
  return down_(SiluMul(gate_up[0], gate_up[1]));
}

void Block::AppendWeights(const std::string& prefix, std::vector<NamedWeight>& out) const {
  const LlamaConfig& c = config_;
  const int64_t q = c.heads * c.head_size(), kv = c.kv_heads * c.head_size();
  const std::string attention = prefix + "self_attn.", ffn = prefix + "mlp.";
  AppendWhole(prefix + "input_layernorm.weight", attention_norm_.weight(), out);
  AppendFused({{attention + "q_proj", q}, {attention + "k_proj", kv}, {attention + "v_proj", kv}},
              qkv_, out);
  if (c.qk_norm) {
    AppendWhole(attention + "q_norm.weight", q_norm_->weight(), out);
    AppendWhole(attention + "k_norm.weight", k_norm_->weight(), out);
  }
  AppendFused({{attention + "o_proj", c.dim}}, out_, out);
  AppendWhole(prefix + "post_attention_layernorm.weight", ffn_norm_.weight(), out);
  AppendFused({{ffn + "gate_proj", c.ffn}, {ffn + "up_proj", c.ffn}}, gate_up_, out);
  AppendFused({{ffn + "down_proj", c.dim}}, down_, out);
}

Llama::Llama(const LlamaConfig& c, const sherd::Device& device)
    : config_(c),
      embedding_(c.vocabulary, c.dim, Usual(), c.dtype),
      norm_(c.dim, c.norm_eps, c.dtype) {
  const sherd::kernels::RopeTables rope = sherd::kernels::MakeRopeTables(
      device, sherd::ComputeDTypeOf(c.dtype), c.positions, c.head_size(), c.rope_theta, c.rope);
  RegisterModule("embedding", embedding_);
  for (int64_t i = 0; i < c.layers; ++i) {
    RegisterModule(absl::StrCat("block", i), blocks_.emplace_back(c, rope));
  }
  RegisterModule("norm", norm_);
  if (c.head.kind == Head::kLanguageModel && !c.tied) {
    head_.emplace(c.dim, c.vocabulary, Usual(), c.dtype);
    RegisterModule("head", *head_);
  } else if (c.head.kind == Head::kClassification) {
    score_.emplace(c.dim, c.head.labels, Usual(), c.dtype);
    RegisterModule("score", *score_);
  }
}

Variable Llama::Forward(const TextInput& input) {
  CheckInput(*this, input, config_.head.kind);
  Variable h = embedding_(input.tokens);
  for (Block& block : blocks_) h = block(h, input.cu_seqlens, input.mask);
  h = norm_(h);
  switch (config_.head.kind) {
    case Head::kClassification:
      return (*score_)(Pool(h, input.mask, Pooling::kLast));
    case Head::kEmbedding:
      return Embed(h, input.pool_mask(), config_.head);
    case Head::kLanguageModel:
      break;
  }
  h = ForLogits(h, input);
  return head_ ? (*head_)(h) : Linear(h, embedding_.weight());
}

std::vector<sherd::Module*> Llama::layers() {
  std::vector<sherd::Module*> layers;
  for (Block& block : blocks_) layers.push_back(&block);
  return layers;
}

std::vector<NamedWeight> Llama::Weights() const {
  std::vector<NamedWeight> weights;
  AppendWhole("model.embed_tokens.weight", embedding_.weight(), weights);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].AppendWeights(absl::StrCat("model.layers.", i, "."), weights);
  }
  AppendWhole("model.norm.weight", norm_.weight(), weights);
  if (head_) AppendWhole("lm_head.weight", head_->weight(), weights);
  if (score_) AppendWhole("score.weight", score_->weight(), weights);
  return weights;
}

std::vector<std::pair<std::string, std::string>> Llama::TiedNames() const {
  if (config_.head.kind != Head::kLanguageModel || !config_.tied) return {};
  return {{"lm_head.weight", "model.embed_tokens.weight"}};
}

}  // namespace llm
