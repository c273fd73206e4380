#include <memory>
#include <variant>

#include "llm/model.h"
#include "llm/models/bert.h"
#include "llm/models/gpt2.h"
#include "llm/models/pretrained.h"

namespace llm {

std::unique_ptr<TextModel> MakeModel(const ModelConfig& config, const sherd::Device& device) {
  if (const auto* const llama = std::get_if<LlamaConfig>(&config.sizes)) {
    return std::make_unique<Llama>(*llama, device);
  }
  if (const auto* const gpt2 = std::get_if<Gpt2Config>(&config.sizes)) {
    return std::make_unique<Gpt2>(*gpt2);
  }
  return std::make_unique<Bert>(std::get<BertConfig>(config.sizes));
}

}  // namespace llm
