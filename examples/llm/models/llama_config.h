#pragma once

#include <string>

#include "llm/model.h"
#include "llm/models/config_reader.h"

namespace llm {

// Whether Llama (model.h) is what a config of this "model_type" describes.
bool IsLlamaType(const std::string& model_type);

// What a config.json of such a type says of sizes; head and dtype are the caller's. What is wrong
// is noted in the reader.
LlamaConfig ReadLlamaConfig(const std::string& model_type, ConfigReader& reader);

// The same as fields of a config.json, "model_type" and "architectures" excepted.
sherd::JsonObject LlamaFields(const LlamaConfig& config);

// The type that such a config has: "llama", or one of its kin that has what Llama has not.
std::string LlamaTypeOf(const LlamaConfig& config);

}  // namespace llm
