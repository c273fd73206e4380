#include "llm/models/decoder.h"

#include "llm/models/initial_values.h"
#include "llm/models/named_weights.h"
#include "sherd/autograd/ops/linear.h"

namespace llm {

using sherd::Variable;

Decoder::Decoder(const Sizes& sizes)
    : TextModel(sizes.head),
      sizes_(sizes),
      embedding_(sizes.vocabulary, sizes.dim, Usual(), sizes.dtype) {
  RegisterModule("embedding", embedding_);
}

void Decoder::RegisterHead() {
  const auto layer = [&](int64_t rows, std::optional<sherd::LinearLayer>& of) -> sherd::Module& {
    return of.emplace(sizes_.dim, rows, Usual(), sizes_.dtype);
  };
  if (head().kind == Head::kLanguageModel && !sizes_.tied) {
    RegisterModule("head", layer(sizes_.vocabulary, token_head_));
  } else if (head().kind == Head::kClassification) {
    RegisterModule("score", layer(head().labels, score_));
  }
}

Variable Decoder::Logits(const Variable& hidden) {
  return token_head_ ? (*token_head_)(hidden) : Linear(hidden, embedding_.weight());
}

Variable Decoder::Classes(const Variable& hidden, const sherd::Tensor& mask) {
  return (*score_)(Pool(hidden, mask, Pooling::kLast));
}

std::vector<NamedWeight> Decoder::Weights() const {
  std::vector<NamedWeight> weights;
  AppendWhole(EmbeddingName(), embedding_.weight(), weights);
  AppendInner(weights);
  if (token_head_) AppendWhole("lm_head.weight", token_head_->weight(), weights);
  if (score_) AppendWhole("score.weight", score_->weight(), weights);
  return weights;
}

std::vector<std::pair<std::string, std::string>> Decoder::TiedNames() const {
  if (!has_tied_head()) return {};
  return {{"lm_head.weight", EmbeddingName()}};
}

}  // namespace llm
