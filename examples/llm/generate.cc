#include "llm/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "llm/models/key_value_cache.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/core/tensor.h"

namespace llm {
namespace {

using sherd::Tensor;

// Logits as f64.
std::vector<double> LogitsOf(const Tensor& row) {
  if (row.dtype() == sherd::DType::kF64) return row.ToHost<double>();
  const std::vector<float> values = row.ToHost<float>();
  return {values.begin(), values.end()};
}

// Kernels prepare themselves for every new shape, so contexts come in few lengths. What is behind
// the last byte does not matter to a causal model.
int64_t PaddedLength(int64_t length, int64_t most) {
  int64_t padded = 32;
  while (padded < length) padded *= 2;
  return std::min(padded, most);
}

// The logits behind a text that grows by a token at a time.
class NextLogits {
 public:
  // `prompt` tokens first, `most` in the end.
  NextLogits(TextModel& model, const sherd::Device& device, int64_t prompt, int64_t most)
      : model_(model), device_(device), positions_(model.positions()) {
    if (prompt > positions_) return;
    const int64_t capacity = std::max(PaddedLength(prompt, positions_), most);
    cache_ = std::make_shared<KeyValueCache>(static_cast<int64_t>(model.layers().size()),
                                             std::min(capacity, positions_));
  }
  // Without a cache.
  NextLogits(TextModel& model, const sherd::Device& device)
      : model_(model), device_(device), positions_(model.positions()) {}

  std::vector<double> Of(const std::vector<int64_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    if (count > positions_) cache_ = nullptr;  // every token changes its position
    const int64_t kept = cache_ ? cache_->tokens() : 0;
    const int64_t begin = std::max(kept, count - positions_), length = count - begin;
    std::vector<int64_t> context(tokens.begin() + begin, tokens.end());
    if (kept == 0) context.resize(static_cast<size_t>(PaddedLength(length, positions_)), 0);
    const auto padded = static_cast<int64_t>(context.size());
    const sherd::Variable logits =
        model_(TextInput{.tokens = Tensor::FromHost<int64_t>(device_, context, {1, padded}),
                         .cache = cache_,
                         .logits_at = length - 1});
    if (cache_) cache_->Truncate(count);
    return LogitsOf(logits.value());
  }

 private:
  TextModel& model_;
  const sherd::Device& device_;
  const int64_t positions_;
  std::shared_ptr<KeyValueCache> cache_;
};

}  // namespace

int64_t DrawToken(const std::vector<double>& logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0.0) return largest - logits.begin();
  std::vector<double> weights;
  double total = 0.0;
  for (double logit : logits) {
    weights.push_back(std::exp((logit - *largest) / temperature));
    total += weights.back();
  }
  double rest = uniform * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0.0) return static_cast<int64_t>(i);
  }
  return largest - logits.begin();
}

void KeepLikely(const Sampling& sampling, std::vector<double>& logits) {
  const auto count = static_cast<int64_t>(logits.size());
  const bool some = sampling.top_k > 0 && sampling.top_k < count;
  if (sampling.temperature <= 0.0 || (!some && sampling.top_p >= 1.0)) return;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto kept = static_cast<size_t>(some ? sampling.top_k : count);
  std::vector<double> weights;
  for (size_t i = 0; i < kept; ++i) {
    weights.push_back(std::exp((logits[order[i]] - logits[order[0]]) / sampling.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t end = 0;
  for (double sum = 0.0; end < kept && (end == 0 || sum < sampling.top_p * total); ++end) {
    sum += weights[end];
  }
  for (size_t i = end; i < order.size(); ++i) {
    logits[order[i]] = -std::numeric_limits<double>::infinity();
  }
}

std::vector<int64_t> Continue(TextModel& model, std::vector<int64_t> prompt,
                              const ContinueOptions& options, const sherd::Device& device) {
  constexpr uint64_t kPurpose = sherd::HashName("generate");
  const Sampling& sampling = options.sampling;
  const uint64_t key = sherd::Mix64(sampling.seed, kPurpose);
  std::vector<int64_t>& tokens = prompt;
  const auto begin = static_cast<int64_t>(tokens.size());
  NextLogits next = options.cache ? NextLogits(model, device, begin, begin + options.tokens)
                                  : NextLogits(model, device);
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < options.tokens; ++i) {
    std::vector<double> row = next.Of(tokens);
    KeepLikely(sampling, row);
    const double uniform =
        sherd::UniformOpen(sherd::Philox4x32(key, static_cast<uint64_t>(i), 0)[0]);
    int64_t token = DrawToken(row, sampling.temperature, uniform);
    if (options.group != nullptr) {
      options.group->Broadcast(&token, sizeof(token), 0, {.op = "draw"});
    }
    if (std::ranges::find(options.end_tokens, token) != options.end_tokens.end()) break;
    tokens.push_back(token);
    drawn.push_back(token);
    if (options.on_token) options.on_token(token);
  }
  return drawn;
}

std::string Generate(TextModel& model, std::string_view prompt, const GenerateOptions& options,
                     const sherd::Device& device) {
  std::vector<int64_t> tokens;
  for (char c : prompt) tokens.push_back(static_cast<uint8_t>(c));
  const Sampling sampling = {.temperature = options.temperature, .seed = options.seed};
  std::string text;
  for (int64_t token : Continue(model, std::move(tokens),
                                {.tokens = options.bytes, .sampling = sampling}, device)) {
    text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace llm
