#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace llm {

// Predicts a byte from the one before it, by counting: what a language model has to beat.
//
// p(b | a) = (count(a b) + k p(b)) / (count(a) + k), where p(b) is the share of b with one added to
// every count. The constructor chooses k by the last twentieth of `text`, from counts of the rest.
// Source: MacKay and Peto 1995, "A hierarchical Dirichlet language model".
class Bigram {
 public:
  // Fits `text`, which may be of any length.
  explicit Bigram(std::span<const uint8_t> text);
  // Fits `text` with a given k > 0.
  Bigram(std::span<const uint8_t> text, double strength);

  double strength() const { return strength_; }
  double Probability(uint8_t previous, uint8_t next) const;

  // The mean of -ln p over the `seq` predictions of each window of `text` that `starts` lists; the
  // same positions a model of byte windows is measured on. Units: nats per byte.
  // REQUIRES: at least one window; start + seq < text.size() for each.
  double MeanLoss(std::span<const uint8_t> text, std::span<const int64_t> starts,
                  int64_t seq) const;

 private:
  std::vector<double> pairs_;           // [256, 256] counts
  std::array<double, 256> contexts_{};  // counts of the first byte of a pair
  std::array<double, 256> unigram_{};   // p(b)
  double strength_;
};

}  // namespace llm
