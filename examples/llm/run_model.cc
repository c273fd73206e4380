#include "llm/run_model.h"

#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace llm {
namespace {

sherd::DType DTypeOf(const Options& o) { return o.f64 ? sherd::DType::kF64 : sherd::DType::kF32; }

LlamaConfig NewLlama(const Options& o, int64_t vocabulary) {
  return {.vocabulary = vocabulary,
          .dim = o.dim,
          .layers = o.layers,
          .heads = o.heads,
          .kv_heads = o.kv_heads,
          .ffn = o.ffn_size(),
          .positions = o.seq,
          .tied = o.tied,
          .dropout = o.dropout,
          .dtype = DTypeOf(o)};
}

absl::Status Unfit(const Options& o, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("the model of --init ", o.init, " ", why));
}

// Positions and vocabulary of any kind.
std::pair<int64_t, int64_t> LimitsOf(const ModelConfig& config) {
  return std::visit([](const auto& sizes) { return std::pair(sizes.positions, sizes.vocabulary); },
                    config.sizes);
}

}  // namespace

absl::StatusOr<ModelConfig> RunModelConfig(const Options& o, int64_t vocabulary) {
  if (o.init.empty()) return ConfigOf(NewLlama(o, vocabulary));
  absl::StatusOr<ModelConfig> config = ReadModelConfig(o.init, {.dtype = DTypeOf(o)});
  if (!config.ok()) return config;
  if (config->model_type() == "bert" || config->head().kind != Head::kLanguageModel) {
    return Unfit(o, "does not predict the next token: it is no causal language model");
  }
  const auto [positions, tokens] = LimitsOf(*config);
  if (positions < o.seq) {
    return Unfit(o, absl::StrCat("has ", positions, " positions, fewer than --seq ", o.seq));
  }
  if (tokens < vocabulary) {
    return Unfit(o, absl::StrCat("has ", tokens, " tokens, and the data has ", vocabulary));
  }
  if (auto* const llama = std::get_if<LlamaConfig>(&config->sizes)) llama->dropout = o.dropout;
  if (auto* const gpt2 = std::get_if<Gpt2Config>(&config->sizes)) {
    gpt2->residual_dropout = gpt2->embedding_dropout = gpt2->attention_dropout = o.dropout;
  }
  return config;
}

Options WithSizesOf(const ModelConfig& config, Options o) {
  std::visit(
      [&](const auto& sizes) {
        o.dim = sizes.dim;
        o.layers = sizes.layers;
        o.heads = sizes.heads;
        o.ffn = sizes.ffn;
        o.tied = sizes.tied;
      },
      config.sizes);
  const auto* const llama = std::get_if<LlamaConfig>(&config.sizes);
  o.kv_heads = llama != nullptr ? llama->kv_heads : o.heads;
  return o;
}

}  // namespace llm
