#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/models/text_model.h"
#include "sherd/runtime/comm/process_group.h"

namespace llm {

// How tokens are drawn from logits.
struct Sampling {
  double temperature = 0.8;  // 0: the likeliest token every time
  int64_t top_k = 0;         // among so many likeliest; 0: among all
  double top_p = 1.0;        // among the fewest likeliest that have this probability together
  uint64_t seed = 1;
};

struct ContinueOptions {
  int64_t tokens = 100;  // at most
  Sampling sampling = {};
  std::vector<int64_t> end_tokens = {};  // one of them ends it, and is not returned
  // Keeps the keys and values of tokens, so that each token costs the forward of one; otherwise,
  // and once there are more than positions(), that of the whole context.
  bool cache = true;
  // Of a sharded model: rank 0's draw is everybody's, so ranks end together.
  sherd::ProcessGroup* group = nullptr;
  // Called with each token when it is drawn; may be empty.
  std::function<void(int64_t)> on_token = {};
};

// Tokens a causal model continues `prompt` with.
//
// Each token sees at most positions() tokens before it. Without `group` ranks that differ in their
// last bits may draw different tokens, which harms nobody as long as no end token is given: only
// the number of forwards has to agree.
// COLLECTIVE if the model is sharded. Cost: one forward for each token; see ContinueOptions::cache.
// REQUIRES: no Recording is on; a prompt, of tokens below vocabulary().
std::vector<int64_t> Continue(TextModel& model, std::vector<int64_t> prompt,
                              const ContinueOptions& options, const sherd::Device& device);

struct GenerateOptions {
  int64_t bytes = 400;
  double temperature = 0.8;  // 0: the likeliest byte every time
  uint64_t seed = 1;
};

// Bytes a model of bytes continues `prompt` with; see Continue.
std::string Generate(TextModel& model, std::string_view prompt, const GenerateOptions& options,
                     const sherd::Device& device);

// Takes out of the draw what top_k and top_p leave out: those logits become -infinity. Of equal
// logits the first are kept.
void KeepLikely(const Sampling& sampling, std::vector<double>& logits);

// Draws from softmax(logits / temperature) by `uniform` in (0, 1); the first of the largest for
// temperature 0.
int64_t DrawToken(const std::vector<double>& logits, double temperature, double uniform);

}  // namespace llm
