#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "llm/models/bert_config.h"
#include "llm/models/gpt2_config.h"
#include "llm/models/head_options.h"
#include "llm/models/llama_config.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/io/json.h"

namespace llm {

// A model as a config.json describes it.
struct ModelConfig {
  std::variant<LlamaConfig, Gpt2Config, BertConfig> sizes;
  // The fields of the file, also those that nobody here reads: what an export writes again.
  sherd::JsonObject fields;

  HeadOptions head() const;
  std::string model_type() const;  // "llama", "gpt2", ...
};

struct ConfigOptions {
  // What the model ends in; unset: what "architectures" says.
  std::optional<HeadOptions> head = {};
  sherd::DType dtype = sherd::DType::kF32;  // of the parameters, whatever the files have
  // Shortens the tables of rotary positions, whose memory grows with it; 0: as the config says.
  int64_t positions = 0;
};

// Reads config.json of a Hugging Face folder: Llama, Mistral, Qwen2, Qwen3 (SmolLM2 is a Llama),
// GPT-2 and BERT.
//
// Errors: what the system says of the file; kInvalidArgument naming the file and, all at once, each
//   field that is missing or malformed, or asks for what is not supported (a sliding window that is
//   in use, an unknown rope type or activation, quantised weights, ...), with its value.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder,
                                            const ConfigOptions& options = {});

// As above of the text of such a file, which messages call `name`.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& name, std::string_view text,
                                             const ConfigOptions& options = {});

// The config of a Llama made here. What no config.json can say, dropout of the residual branches,
// is left out. Its fields read as the same config.
ModelConfig ConfigOf(const LlamaConfig& config);

// The text of a config.json whose weights have `dtype`.
std::string ConfigText(const ModelConfig& config, sherd::DType dtype);

}  // namespace llm
