#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "data/samples.h"

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
  // Fits the tokens of all samples, joined in order. REQUIRES: tokens are bytes.
  explicit Bigram(const data::Samples& samples);
  // Fits `text` with a given k > 0.
  Bigram(std::span<const uint8_t> text, double strength);

  double strength() const { return strength_; }
  double Probability(uint8_t previous, uint8_t next) const;

  // The mean of -ln p over all labels of `samples`, each predicted from the token it belongs to;
  // the same that a model is measured on. Units: nats per byte. REQUIRES: some label; tokens are
  // bytes.
  double MeanLoss(const data::Samples& samples) const;
  // The same over every byte of `text` but the first. REQUIRES: at least two.
  double MeanLoss(std::span<const uint8_t> text) const;

 private:
  std::vector<double> pairs_;           // [256, 256] counts
  std::array<double, 256> contexts_{};  // counts of the first byte of a pair
  std::array<double, 256> unigram_{};   // p(b)
  double strength_;
};

}  // namespace llm
