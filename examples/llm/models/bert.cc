#include "llm/models/bert.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "llm/models/activate.h"
#include "llm/models/attention_heads.h"
#include "llm/models/initial_values.h"
#include "llm/models/named_weights.h"
#include "llm/models/positions.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/runtime/base/error.h"

namespace llm {
namespace {

using sherd::Bias;
using sherd::Initializer;
using sherd::Tensor;
using sherd::Variable;

Tensor TypesOf(const TextInput& input) {
  if (input.token_types.defined()) return input.token_types;
  const Tensor& tokens = input.tokens.value();
  return Tensor::Zeros(tokens.device(), sherd::DType::kI64, tokens.shape());
}

}  // namespace

BertBlock::BertBlock(const BertConfig& c)
    : config_(c),
      qkv_(c.dim, 3 * c.dim, Usual(), c.dtype, Bias::kZero),
      out_(c.dim, c.dim, Usual(), c.dtype, Bias::kZero),
      attention_norm_(c.dim, c.norm_eps, c.dtype),
      up_(c.dim, c.ffn, Usual(), c.dtype, Bias::kZero),
      down_(c.ffn, c.dim, Usual(), c.dtype, Bias::kZero),
      ffn_norm_(c.dim, c.norm_eps, c.dtype) {
  RegisterModule("qkv", qkv_);
  RegisterModule("out", out_);
  RegisterModule("attention_norm", attention_norm_);
  RegisterModule("up", up_);
  RegisterModule("down", down_);
  RegisterModule("ffn_norm", ffn_norm_);
}

Variable BertBlock::operator()(const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
  return Call(
      *this,
      [](BertBlock& self, const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
        const double p = self.config_.dropout;
        const Variable h =
            self.attention_norm_(Add(x, Dropout(self.Attend(x, cu_seqlens, mask), p)));
        const Variable inner = Activate(self.up_(h), self.config_.activation);
        return self.ffn_norm_(Add(h, Dropout(self.down_(inner), p)));
      },
      x, cu_seqlens, mask);
}

Variable BertBlock::Attend(const Variable& x, const Tensor& cu_seqlens, const Tensor& mask) {
  const auto [q, k, v] = SplitHeads(qkv_(x), config_.heads, config_.heads);
  return out_(
      JoinHeads(Attention(q, k, v,
                          {.causal = false,
                           .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_size())),
                           .key_mask = mask,
                           .cu_seqlens = cu_seqlens,
                           .dropout = config_.attention_dropout})));
}

void BertBlock::AppendWeights(const std::string& prefix, std::vector<NamedWeight>& out) const {
  const int64_t c = config_.dim;
  const std::string self = prefix + "attention.self.";
  AppendFused({{self + "query", c}, {self + "key", c}, {self + "value", c}}, qkv_, out);
  AppendLinear(prefix + "attention.output.dense", out_, /*transposed=*/false, out);
  AppendNorm(prefix + "attention.output.LayerNorm", attention_norm_, out);
  AppendLinear(prefix + "intermediate.dense", up_, /*transposed=*/false, out);
  AppendLinear(prefix + "output.dense", down_, /*transposed=*/false, out);
  AppendNorm(prefix + "output.LayerNorm", ffn_norm_, out);
}

Bert::TokenHead::TokenHead(const BertConfig& c) {
  if (!c.tied) weight = RegisterParameter("weight", {c.vocabulary, c.dim}, Usual(), c.dtype);
  bias = RegisterParameter("bias", {c.vocabulary}, Initializer::Constant(0.0), c.dtype);
}

Bert::Bert(const BertConfig& c)
    : TextModel(c.head),
      config_(c),
      embedding_(c.vocabulary, c.dim, Usual(), c.dtype),
      position_embedding_(c.positions, c.dim, Usual(), c.dtype),
      token_type_embedding_(c.token_types, c.dim, Usual(), c.dtype),
      embedding_norm_(c.dim, c.norm_eps, c.dtype) {
  RegisterModule("embedding", embedding_);
  RegisterModule("position_embedding", position_embedding_);
  RegisterModule("token_type_embedding", token_type_embedding_);
  RegisterModule("embedding_norm", embedding_norm_);
  for (int64_t i = 0; i < c.layers; ++i) RegisterLayer(blocks_.emplace_back(c));
  if (c.head.kind == Head::kLanguageModel) {
    RegisterModule("transform", transform_.emplace(c.dim, c.dim, Usual(), c.dtype, Bias::kZero));
    RegisterModule("transform_norm", transform_norm_.emplace(c.dim, c.norm_eps, c.dtype));
    RegisterModule("head", token_head_.emplace(c));
    return;
  }
  RegisterModule("pooler", pooler_.emplace(c.dim, c.dim, Usual(), c.dtype, Bias::kZero));
  if (c.head.kind == Head::kClassification) {
    RegisterModule("score", score_.emplace(c.dim, c.head.labels, Usual(), c.dtype, Bias::kZero));
  }
}

Variable Bert::Hidden(const TextInput& input) {
  if (input.cache) {
    sherd::ThrowInvalidArgument("tokens see those behind them, so a cache is of no use",
                                {.op = "Bert"});
  }
  const Variable words =
      Add(embedding_(input.tokens), token_type_embedding_(Variable(TypesOf(input))));
  const Variable all = Add(words, position_embedding_(Variable(PositionsOf(input, "Bert"))));
  Variable h = Dropout(embedding_norm_(all), config_.dropout);
  for (BertBlock& block : blocks_) h = block(h, input.cu_seqlens, input.mask);
  return h;
}

Variable Bert::Logits(const Variable& hidden) {
  const Variable h = (*transform_norm_)(Activate((*transform_)(hidden), config_.activation));
  return Linear(h, config_.tied ? embedding_.weight() : token_head_->weight, token_head_->bias);
}

Variable Bert::Classes(const Variable& hidden, const Tensor&) {
  const Variable pooled = Tanh((*pooler_)(Pool(hidden, {}, Pooling::kFirst)));
  return (*score_)(Dropout(pooled, config_.classifier_dropout));
}

std::vector<NamedWeight> Bert::Weights() const {
  std::vector<NamedWeight> weights;
  const std::string base = "bert.embeddings.";
  AppendWhole(base + "word_embeddings.weight", embedding_.weight(), weights);
  AppendWhole(base + "position_embeddings.weight", position_embedding_.weight(), weights);
  AppendWhole(base + "token_type_embeddings.weight", token_type_embedding_.weight(), weights);
  AppendNorm(base + "LayerNorm", embedding_norm_, weights);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].AppendWeights(absl::StrCat("bert.encoder.layer.", i, "."), weights);
  }
  if (pooler_) AppendLinear("bert.pooler.dense", *pooler_, /*transposed=*/false, weights);
  if (score_) AppendLinear("classifier", *score_, /*transposed=*/false, weights);
  if (token_head_) {
    AppendLinear("cls.predictions.transform.dense", *transform_, /*transposed=*/false, weights);
    AppendNorm("cls.predictions.transform.LayerNorm", *transform_norm_, weights);
    if (!config_.tied) AppendWhole("cls.predictions.decoder.weight", token_head_->weight, weights);
    AppendWhole("cls.predictions.bias", token_head_->bias, weights);
  }
  return weights;
}

std::vector<std::pair<std::string, std::string>> Bert::TiedNames() const {
  if (config_.head.kind != Head::kLanguageModel) return {};
  std::vector<std::pair<std::string, std::string>> names = {
      {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  if (config_.tied) {
    names.emplace_back("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight");
  }
  return names;
}

}  // namespace llm
