#include "llm/models/gpt2.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "llm/models/activate.h"
#include "llm/models/initial_values.h"
#include "llm/models/named_weights.h"
#include "llm/models/positions.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"

namespace llm {
namespace {

using sherd::Bias;
using sherd::Variable;

// What scores are multiplied with.
double ScaleOf(const Gpt2Config& c, int64_t index) {
  double scale = c.scale_attention ? 1.0 / std::sqrt(static_cast<double>(c.head_size())) : 1.0;
  if (c.scale_by_layer) scale /= static_cast<double>(index + 1);
  return scale;
}

}  // namespace

Gpt2Block::Gpt2Block(const Gpt2Config& c, int64_t index)
    : config_(c),
      scale_(ScaleOf(c, index)),
      attention_norm_(c.dim, c.norm_eps, c.dtype),
      qkv_(c.dim, 3 * c.dim, Usual(), c.dtype, Bias::kZero),
      out_(c.dim, c.dim, IntoResidual(c.layers), c.dtype, Bias::kZero),
      ffn_norm_(c.dim, c.norm_eps, c.dtype),
      up_(c.dim, c.ffn, Usual(), c.dtype, Bias::kZero),
      down_(c.ffn, c.dim, IntoResidual(c.layers), c.dtype, Bias::kZero) {
  RegisterModule("attention_norm", attention_norm_);
  RegisterModule("qkv", qkv_);
  RegisterModule("out", out_);
  RegisterModule("ffn_norm", ffn_norm_);
  RegisterModule("up", up_);
  RegisterModule("down", down_);
}

Variable Gpt2Block::operator()(const Variable& x, const LayerInput& input) {
  return Call(
      *this,
      [](Gpt2Block& self, const Variable& x, const LayerInput& input) {
        const double p = self.config_.residual_dropout;
        const Variable h = Add(x, Dropout(self.Attend(self.attention_norm_(x), input), p));
        const Variable inner = Activate(self.up_(self.ffn_norm_(h)), self.config_.activation);
        return Add(h, Dropout(self.down_(inner), p));
      },
      x, input);
}

Variable Gpt2Block::Attend(const Variable& x, const LayerInput& input) {
  const QueryKeyValue of = SplitHeads(qkv_(x), config_.heads, config_.heads);
  return out_(CausalAttention(of, input, scale_, config_.attention_dropout));
}

void Gpt2Block::AppendWeights(const std::string& prefix, std::vector<NamedWeight>& out) const {
  AppendNorm(prefix + "ln_1", attention_norm_, out);
  AppendLinear(prefix + "attn.c_attn", qkv_, /*transposed=*/true, out);
  AppendLinear(prefix + "attn.c_proj", out_, /*transposed=*/true, out);
  AppendNorm(prefix + "ln_2", ffn_norm_, out);
  AppendLinear(prefix + "mlp.c_fc", up_, /*transposed=*/true, out);
  AppendLinear(prefix + "mlp.c_proj", down_, /*transposed=*/true, out);
}

Gpt2::Gpt2(const Gpt2Config& c)
    : Decoder(c),
      config_(c),
      position_embedding_(c.positions, c.dim, Usual(), c.dtype),
      norm_(c.dim, c.norm_eps, c.dtype) {
  RegisterModule("position_embedding", position_embedding_);
  for (int64_t i = 0; i < c.layers; ++i) RegisterLayer(blocks_.emplace_back(c, i));
  RegisterModule("norm", norm_);
  RegisterHead();
}

Variable Gpt2::Hidden(const TextInput& input) {
  const Variable h =
      Add(Embedded(input.tokens), position_embedding_(Variable(PositionsOf(input, "Gpt2"))));
  return norm_(RunBlocks(blocks_, Dropout(h, config_.embedding_dropout), input));
}

void Gpt2::AppendInner(std::vector<NamedWeight>& out) const {
  AppendWhole("transformer.wpe.weight", position_embedding_.weight(), out);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].AppendWeights(absl::StrCat("transformer.h.", i, "."), out);
  }
  AppendNorm("transformer.ln_f", norm_, out);
}

}  // namespace llm
