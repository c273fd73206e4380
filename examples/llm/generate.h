#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llm/model.h"

namespace llm {

struct GenerateOptions {
  int64_t bytes = 400;
  double temperature = 0.8;  // 0: the likeliest byte every time
  uint64_t seed = 1;
};

// Bytes the model continues `prompt` with.
//
// Each byte sees at most config.positions bytes before it. Ranks that differ in their last bits may
// draw different bytes, which harms nobody: only the number of forwards has to agree.
// COLLECTIVE. Cost: one forward for each byte. REQUIRES: no Recording is on; a prompt.
std::string Generate(Llama& model, std::string_view prompt, const GenerateOptions& options,
                     const sherd::Device& device);

// Draws from softmax(logits / temperature) by `uniform` in (0, 1); the first of the largest for
// temperature 0.
int64_t DrawToken(const std::vector<double>& logits, double temperature, double uniform);

}  // namespace llm
