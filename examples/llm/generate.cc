#include "llm/generate.h"

#include <algorithm>
#include <cmath>

#include "sherd/runtime/core/random.h"
#include "sherd/runtime/core/tensor.h"

namespace llm {
namespace {

using sherd::Tensor;

// The last row of logits as f64.
std::vector<double> Row(const Tensor& logits, int64_t position) {
  const Tensor row = logits.Slice(1, position, position + 1);
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

std::string Generate(Llama& model, std::string_view prompt, const GenerateOptions& options,
                     const sherd::Device& device) {
  constexpr uint64_t kPurpose = sherd::HashName("generate");
  const uint64_t key = sherd::Mix64(options.seed, kPurpose);
  const int64_t positions = model.config().positions;
  std::vector<int64_t> tokens;
  for (char c : prompt) tokens.push_back(static_cast<uint8_t>(c));
  std::string text;
  for (int64_t i = 0; i < options.bytes; ++i) {
    const int64_t length = std::min(static_cast<int64_t>(tokens.size()), positions);
    std::vector<int64_t> context(tokens.end() - length, tokens.end());
    context.resize(static_cast<size_t>(PaddedLength(length, positions)), 0);
    const sherd::Variable logits = model(
        Tensor::FromHost<int64_t>(device, context, {1, static_cast<int64_t>(context.size())}));
    const double uniform =
        sherd::UniformOpen(sherd::Philox4x32(key, static_cast<uint64_t>(i), 0)[0]);
    const int64_t token = DrawToken(Row(logits.value(), length - 1), options.temperature, uniform);
    tokens.push_back(token);
    text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace llm
