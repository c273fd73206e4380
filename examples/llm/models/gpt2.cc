#include "llm/models/gpt2.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "llm/models/activate.h"
#include "llm/models/named_weights.h"
#include "llm/models/positions.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"

namespace llm {
namespace {

using sherd::Bias;
using sherd::Initializer;
using sherd::Tensor;
using sherd::Variable;

constexpr double kDeviation = 0.02;

Initializer Usual() { return Initializer::Normal(kDeviation); }

Initializer IntoResidual(const Gpt2Config& c) {
  return Initializer::Normal(kDeviation / std::sqrt(2.0 * static_cast<double>(c.layers)));
}

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
      out_(c.dim, c.dim, IntoResidual(c), c.dtype, Bias::kZero),
      ffn_norm_(c.dim, c.norm_eps, c.dtype),
      up_(c.dim, c.ffn, Usual(), c.dtype, Bias::kZero),
      down_(c.ffn, c.dim, IntoResidual(c), c.dtype, Bias::kZero) {
  RegisterModule("attention_norm", attention_norm_);
  RegisterModule("qkv", qkv_);
  RegisterModule("out", out_);
  RegisterModule("ffn_norm", ffn_norm_);
  RegisterModule("up", up_);
  RegisterModule("down", down_);
}

Variable Gpt2Block::operator()(const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
  return Call(
      *this,
      [](Gpt2Block& self, const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
        const double p = self.config_.residual_dropout;
        const Variable h =
            Add(x, Dropout(self.Attend(self.attention_norm_(x), cu_seqlens, mask), p));
        const Variable inner = Activate(self.up_(self.ffn_norm_(h)), self.config_.activation);
        return Add(h, Dropout(self.down_(inner), p));
      },
      x, cu_seqlens, mask);
}

Variable Gpt2Block::Attend(const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
  const std::array<int64_t, 3> sizes = {config_.dim, config_.dim, config_.dim};
  const std::vector<Variable> qkv = Split(qkv_(x), 2, sizes);
  const auto by_head = [&](const Variable& v) {
    return Reshape(v, {x.dim(0), x.dim(1), config_.heads, config_.head_size()});
  };
  const Variable seen = Attention(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]),
                                  {.causal = true,
                                   .scale = scale_,
                                   .key_mask = mask,
                                   .cu_seqlens = cu_seqlens,
                                   .dropout = config_.attention_dropout});
  return out_(Reshape(seen, x.shape()));
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
    : config_(c),
      embedding_(c.vocabulary, c.dim, Usual(), c.dtype),
      position_embedding_(c.positions, c.dim, Usual(), c.dtype),
      norm_(c.dim, c.norm_eps, c.dtype) {
  RegisterModule("embedding", embedding_);
  RegisterModule("position_embedding", position_embedding_);
  for (int64_t i = 0; i < c.layers; ++i) {
    RegisterModule(absl::StrCat("block", i), blocks_.emplace_back(c, i));
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

Variable Gpt2::Forward(const TextInput& input) {
  CheckInput(*this, input, config_.head.kind);
  Variable h =
      Add(embedding_(input.tokens), position_embedding_(Variable(PositionsOf(input, "Gpt2"))));
  h = Dropout(h, config_.embedding_dropout);
  for (Gpt2Block& block : blocks_) h = block(h, input.cu_seqlens, input.mask);
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

std::vector<sherd::Module*> Gpt2::layers() {
  std::vector<sherd::Module*> layers;
  for (Gpt2Block& block : blocks_) layers.push_back(&block);
  return layers;
}

std::vector<NamedWeight> Gpt2::Weights() const {
  std::vector<NamedWeight> weights;
  AppendWhole("transformer.wte.weight", embedding_.weight(), weights);
  AppendWhole("transformer.wpe.weight", position_embedding_.weight(), weights);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].AppendWeights(absl::StrCat("transformer.h.", i, "."), weights);
  }
  AppendNorm("transformer.ln_f", norm_, weights);
  if (head_) AppendWhole("lm_head.weight", head_->weight(), weights);
  if (score_) AppendWhole("score.weight", score_->weight(), weights);
  return weights;
}

std::vector<std::pair<std::string, std::string>> Gpt2::TiedNames() const {
  if (config_.head.kind != Head::kLanguageModel || !config_.tied) return {};
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

}  // namespace llm
