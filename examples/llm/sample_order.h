#pragma once

#include <cstdint>

namespace llm {

// A stateless shuffle: a bijection of [0, size) that `key` chooses.
//
// Four Feistel rounds over the next power of four, walked until the value falls into the range.
// Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains".
// Cost: a few hashes a call, no memory.
class Permutation {
 public:
  // REQUIRES: size >= 1.
  Permutation(int64_t size, uint64_t key);

  // REQUIRES: 0 <= i < size.
  int64_t operator()(int64_t i) const;

 private:
  uint64_t Encrypt(uint64_t x) const;

  uint64_t size_;
  uint64_t key_;
  int half_bits_;
};

// Which part of the training text the n-th sample of a run is.
//
// Each epoch cuts the text side by side into windows, from a place of its own within the first
// window's length, and visits every window once in an order of its own. Everything follows from the
// seed and the sample's global index, so neither the number of ranks nor of micro-batches matters,
// and a run that resumes needs no state.
class SampleOrder {
 public:
  // REQUIRES: bytes > seq >= 1.
  SampleOrder(int64_t bytes, int64_t seq, uint64_t seed);

  // Samples an epoch has.
  int64_t windows() const { return windows_; }
  // Where sample `index` begins; its window of seq + 1 bytes lies inside the text.
  int64_t Start(int64_t index) const;

 private:
  int64_t seq_;
  uint64_t seed_;
  int64_t windows_;
  int64_t spare_;  // bytes by which an epoch may begin later
};

}  // namespace llm
