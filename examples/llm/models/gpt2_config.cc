#include "llm/models/gpt2_config.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace llm {

Gpt2Config ReadGpt2Config(ConfigReader& reader) {
  Gpt2Config c;
  c.vocabulary = reader.Integer("vocab_size", std::nullopt);
  c.dim = reader.Integer("n_embd", std::nullopt);
  c.layers = reader.Integer("n_layer", std::nullopt, 1, 4096);
  c.heads = reader.Integer("n_head", std::nullopt, 1, 4096);
  c.ffn = reader.Integer("n_inner", 4 * c.dim);
  c.positions = reader.Integer("n_positions", std::nullopt, 1, int64_t{1} << 24);
  c.tied = reader.Flag("tie_word_embeddings", true);
  c.norm_eps = reader.Real("layer_norm_epsilon", 1e-5);
  c.activation = ReadActivation("activation_function", "gelu_new", reader);
  c.scale_attention = reader.Flag("scale_attn_weights", true);
  c.scale_by_layer = reader.Flag("scale_attn_by_inverse_layer_idx", false);
  c.embedding_dropout = reader.Real("embd_pdrop", 0.1, 0.0, 0.999);
  c.attention_dropout = reader.Real("attn_pdrop", 0.1, 0.0, 0.999);
  c.residual_dropout = reader.Real("resid_pdrop", 0.1, 0.0, 0.999);
  reader.Expect("add_cross_attention", false);
  if (c.dim % c.heads != 0) {
    reader.Refuse("n_head", absl::StrCat("it does not divide n_embd ", c.dim));
  } else if (c.head_size() > 256) {
    reader.Refuse("n_head", absl::StrCat("heads of size ", c.head_size(), ", at most 256"));
  }
  return c;
}

}  // namespace llm
