#include "llm/model.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llm/models/initial_values.h"
#include "llm/models/named_weights.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"

namespace llm {
namespace {

using sherd::Variable;

// Channels of the fused projection.
int64_t QkvSize(const LlamaConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_size(); }

sherd::Bias BiasIf(bool wanted) { return wanted ? sherd::Bias::kZero : sherd::Bias::kNone; }

}  // namespace

Block::Block(const LlamaConfig& c, const sherd::kernels::RopeTables& rope)
    : config_(c),
      rope_(rope),
      attention_norm_(c.dim, c.norm_eps, c.dtype),
      qkv_(c.dim, QkvSize(c), Usual(), c.dtype, BiasIf(c.qkv_bias)),
      out_(c.heads * c.head_size(), c.dim, IntoResidual(c.layers), c.dtype, BiasIf(c.out_bias)),
      ffn_norm_(c.dim, c.norm_eps, c.dtype),
      gate_up_(c.dim, 2 * c.ffn, Usual(), c.dtype, BiasIf(c.ffn_bias)),
      down_(c.ffn, c.dim, IntoResidual(c.layers), c.dtype, BiasIf(c.ffn_bias)) {
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

Variable Block::operator()(const Variable& x, const LayerInput& input) {
  return Call(
      *this,
      [](Block& self, const Variable& x, const LayerInput& input) {
        const double p = self.config_.dropout;
        const Variable h = Add(x, Dropout(self.Attend(self.attention_norm_(x), input), p));
        return Add(h, Dropout(self.FeedForward(self.ffn_norm_(h)), p));
      },
      x, input);
}

Variable Block::Attend(const Variable& x, const LayerInput& input) {
  QueryKeyValue of = SplitHeads(qkv_(x), config_.heads, config_.kv_heads);
  const auto rotated = [&](const Variable& v, std::optional<sherd::RmsNormLayer>& norm) {
    return Rope(norm ? (*norm)(v) : v, rope_, input.begin());
  };
  of.q = rotated(of.q, q_norm_);
  of.k = rotated(of.k, k_norm_);
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_size()));
  return out_(CausalAttention(of, input, scale, config_.attention_dropout));
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
    : Decoder(c), config_(c), norm_(c.dim, c.norm_eps, c.dtype) {
  const sherd::kernels::RopeTables rope = sherd::kernels::MakeRopeTables(
      device, sherd::ComputeDTypeOf(c.dtype), c.positions, c.head_size(), c.rope_theta, c.rope);
  for (int64_t i = 0; i < c.layers; ++i) RegisterLayer(blocks_.emplace_back(c, rope));
  RegisterModule("norm", norm_);
  RegisterHead();
}

Variable Llama::Hidden(const TextInput& input) {
  return norm_(RunBlocks(blocks_, Embedded(input.tokens), input));
}

void Llama::AppendInner(std::vector<NamedWeight>& out) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].AppendWeights(absl::StrCat("model.layers.", i, "."), out);
  }
  AppendWhole("model.norm.weight", norm_.weight(), out);
}

}  // namespace llm
