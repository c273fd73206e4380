#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "llm/models/model_config.h"
#include "llm/options.h"
#include "llm/tokenizer_files.h"

namespace llm {

// What a run trains: a new Llama of the options' sizes, or the model of Options::init, whose
// residual branches have the options' dropout.
// Errors: those of ReadModelConfig; kInvalidArgument if that is no causal language model, has fewer
//   positions than Options::seq, or a vocabulary below `vocabulary`, naming both numbers.
absl::StatusOr<ModelConfig> RunModelConfig(const Options& options, int64_t vocabulary);

// The options with the sizes of `config`, for reports.
Options WithSizesOf(const ModelConfig& config, Options options);

// The entries of a saved state that say which model it has, and where its tokenizer is.
inline constexpr char kConfigEntry[] = "config";
inline constexpr char kTokenizerEntry[] = "tokenizer";

}  // namespace llm
