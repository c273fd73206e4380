#include "llm/bigram.h"

#include <cmath>
#include <vector>

#include "data/documents.h"

namespace llm {
namespace {

double ChooseStrength(std::span<const uint8_t> text) {
  const size_t held_out = text.size() / 20;
  if (held_out < 2) return 1.0;
  const auto tail = text.last(held_out);
  double best = 1.0;
  double best_loss = INFINITY;
  for (double strength = 0.125; strength <= 512; strength *= 2) {
    const double loss = Bigram(text.first(text.size() - held_out), strength).MeanLoss(tail);
    if (loss < best_loss) {
      best_loss = loss;
      best = strength;
    }
  }
  return best;
}

std::vector<uint8_t> BytesOf(const data::Samples& samples) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const data::PackedRow row = samples.Row(i);
    for (int64_t t = 0; t < row.bounds.back(); ++t) {
      bytes.push_back(static_cast<uint8_t>(row.tokens[static_cast<size_t>(t)]));
    }
  }
  return bytes;
}

}  // namespace

Bigram::Bigram(const data::Samples& samples) : Bigram(BytesOf(samples)) {}

Bigram::Bigram(std::span<const uint8_t> text) : Bigram(text, ChooseStrength(text)) {}

Bigram::Bigram(std::span<const uint8_t> text, double strength)
    : pairs_(256 * 256), strength_(strength) {
  unigram_.fill(1.0);
  for (const uint8_t byte : text) unigram_[byte] += 1.0;
  for (double& p : unigram_) p /= static_cast<double>(text.size()) + 256.0;
  for (size_t i = 1; i < text.size(); ++i) {
    pairs_[size_t{text[i - 1]} * 256 + text[i]] += 1.0;
    contexts_[text[i - 1]] += 1.0;
  }
}

double Bigram::Probability(uint8_t previous, uint8_t next) const {
  return (pairs_[size_t{previous} * 256 + next] + strength_ * unigram_[next]) /
         (contexts_[previous] + strength_);
}

double Bigram::MeanLoss(const data::Samples& samples) const {
  double sum = 0.0;
  int64_t labels = 0;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const data::PackedRow row = samples.Row(i);
    for (size_t t = 0; t < row.labels.size(); ++t) {
      if (row.labels[t] == data::kIgnored) continue;
      sum -= std::log(
          Probability(static_cast<uint8_t>(row.tokens[t]), static_cast<uint8_t>(row.labels[t])));
      ++labels;
    }
  }
  return sum / static_cast<double>(labels);
}

double Bigram::MeanLoss(std::span<const uint8_t> text) const {
  double sum = 0.0;
  for (size_t i = 1; i < text.size(); ++i) sum -= std::log(Probability(text[i - 1], text[i]));
  return sum / static_cast<double>(text.size() - 1);
}

}  // namespace llm
