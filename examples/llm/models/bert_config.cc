#include "llm/models/bert_config.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace llm {

BertConfig ReadBertConfig(ConfigReader& reader) {
  BertConfig c;
  c.vocabulary = reader.Integer("vocab_size", std::nullopt);
  c.dim = reader.Integer("hidden_size", std::nullopt);
  c.layers = reader.Integer("num_hidden_layers", std::nullopt, 1, 4096);
  c.heads = reader.Integer("num_attention_heads", std::nullopt, 1, 4096);
  c.ffn = reader.Integer("intermediate_size", std::nullopt);
  c.positions = reader.Integer("max_position_embeddings", std::nullopt, 1, int64_t{1} << 24);
  c.token_types = reader.Integer("type_vocab_size", 2);
  c.tied = reader.Flag("tie_word_embeddings", true);
  c.norm_eps = reader.Real("layer_norm_eps", 1e-12);
  c.activation = ReadActivation("hidden_act", "gelu", reader);
  c.dropout = reader.Real("hidden_dropout_prob", 0.1, 0.0, 0.999);
  c.attention_dropout = reader.Real("attention_probs_dropout_prob", 0.1, 0.0, 0.999);
  c.classifier_dropout = reader.Real("classifier_dropout", c.dropout, 0.0, 0.999);
  reader.Expect("is_decoder", false);
  reader.Expect("add_cross_attention", false);
  if (reader.Text("position_embedding_type", "absolute") != "absolute") {
    reader.Refuse("position_embedding_type", "known is absolute");
  }
  if (c.dim % c.heads != 0) {
    reader.Refuse("num_attention_heads", absl::StrCat("it does not divide hidden_size ", c.dim));
  } else if (c.head_size() > 256) {
    reader.Refuse("num_attention_heads",
                  absl::StrCat("heads of size ", c.head_size(), ", at most 256"));
  }
  return c;
}

}  // namespace llm
