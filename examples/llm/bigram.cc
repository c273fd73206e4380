#include "llm/bigram.h"

#include <cmath>

namespace llm {
namespace {

double ChooseStrength(std::span<const uint8_t> text) {
  const size_t held_out = text.size() / 20;
  if (held_out < 2) return 1.0;
  const auto tail = text.last(held_out);
  const int64_t start = 0;
  double best = 1.0;
  double best_loss = INFINITY;
  for (double strength = 0.125; strength <= 512; strength *= 2) {
    const Bigram model(text.first(text.size() - held_out), strength);
    const double loss =
        model.MeanLoss(tail, std::span(&start, 1), static_cast<int64_t>(held_out) - 1);
    if (loss < best_loss) {
      best_loss = loss;
      best = strength;
    }
  }
  return best;
}

}  // namespace

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

double Bigram::MeanLoss(std::span<const uint8_t> text, std::span<const int64_t> starts,
                        int64_t seq) const {
  double sum = 0.0;
  for (const int64_t start : starts) {
    const auto window = text.subspan(static_cast<size_t>(start), static_cast<size_t>(seq) + 1);
    for (size_t i = 1; i < window.size(); ++i)
      sum -= std::log(Probability(window[i - 1], window[i]));
  }
  return sum / static_cast<double>(static_cast<int64_t>(starts.size()) * seq);
}

}  // namespace llm
