#include "llm/models/bert.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "llm/models/activate.h"
#include "llm/models/named_weights.h"
#include "llm/models/positions.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/activation.h"
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

Initializer Usual() { return Initializer::Normal(0.02); }

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
  const std::array<int64_t, 3> sizes = {config_.dim, config_.dim, config_.dim};
  const std::vector<Variable> qkv = Split(qkv_(x), 2, sizes);
  const auto by_head = [&](const Variable& v) {
    return Reshape(v, {x.dim(0), x.dim(1), config_.heads, config_.head_size()});
  };
  const Variable seen =
      Attention(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]),
                {.causal = false,
                 .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_size())),
                 .key_mask = mask,
                 .cu_seqlens = cu_seqlens,
                 .dropout = config_.attention_dropout});
  return out_(Reshape(seen, x.shape()));
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
    : config_(c),
      embedding_(c.vocabulary, c.dim, Usual(), c.dtype),
      position_embedding_(c.positions, c.dim, Usual(), c.dtype),
      token_type_embedding_(c.token_types, c.dim, Usual(), c.dtype),
      embedding_norm_(c.dim, c.norm_eps, c.dtype) {
  RegisterModule("embedding", embedding_);
  RegisterModule("position_embedding", position_embedding_);
  RegisterModule("token_type_embedding", token_type_embedding_);
  RegisterModule("embedding_norm", embedding_norm_);
  for (int64_t i = 0; i < c.layers; ++i) {
    RegisterModule(absl::StrCat("block", i), blocks_.emplace_back(c));
  }
  if (c.head.kind == Head::kLanguageModel) {
    RegisterModule("transform", transform_.emplace(c.dim, c.dim, Usual(), c.dtype, Bias::kZero));
    RegisterModule("transform_norm", transform_norm_.emplace(c.dim, c.norm_eps, c.dtype));
    RegisterModule("head", head_.emplace(c));
    return;
  }
  RegisterModule("pooler", pooler_.emplace(c.dim, c.dim, Usual(), c.dtype, Bias::kZero));
  if (c.head.kind == Head::kClassification) {
    RegisterModule("score", score_.emplace(c.dim, c.head.labels, Usual(), c.dtype, Bias::kZero));
  }
}

Variable Bert::Embeddings(const TextInput& input) {
  const Variable words =
      Add(embedding_(input.tokens), token_type_embedding_(Variable(TypesOf(input))));
  const Variable all = Add(words, position_embedding_(Variable(PositionsOf(input, "Bert"))));
  return Dropout(embedding_norm_(all), config_.dropout);
}

Variable Bert::Tokens(const Variable& hidden) {
  const Variable h = (*transform_norm_)(Activate((*transform_)(hidden), config_.activation));
  return Linear(h, config_.tied ? embedding_.weight() : head_->weight, head_->bias);
}

Variable Bert::Forward(const TextInput& input) {
  CheckInput(*this, input, config_.head.kind);
  Variable h = Embeddings(input);
  for (BertBlock& block : blocks_) h = block(h, input.cu_seqlens, input.mask);
  switch (config_.head.kind) {
    case Head::kClassification: {
      const Variable pooled = Tanh((*pooler_)(Pool(h, {}, Pooling::kFirst)));
      return (*score_)(Dropout(pooled, config_.classifier_dropout));
    }
    case Head::kEmbedding:
      return Embed(h, input.pool_mask(), config_.head);
    case Head::kLanguageModel:
      break;
  }
  return Tokens(ForLogits(h, input));
}

std::vector<sherd::Module*> Bert::layers() {
  std::vector<sherd::Module*> layers;
  for (BertBlock& block : blocks_) layers.push_back(&block);
  return layers;
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
  if (head_) {
    AppendLinear("cls.predictions.transform.dense", *transform_, /*transposed=*/false, weights);
    AppendNorm("cls.predictions.transform.LayerNorm", *transform_norm_, weights);
    if (!config_.tied) AppendWhole("cls.predictions.decoder.weight", head_->weight, weights);
    AppendWhole("cls.predictions.bias", head_->bias, weights);
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
