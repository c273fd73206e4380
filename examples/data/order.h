#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace data {

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

// The place in an order where the next sample is taken.
struct Cursor {
  int64_t epoch = 0;
  int64_t position = 0;  // samples of this epoch that were taken

  bool operator==(const Cursor&) const = default;
};

// The global order of samples: every epoch visits each sample exactly once, in an order of its own.
//
// All of it follows from the seed, so it is the same on every rank and for every number of ranks.
// Threads: any number may read.
class Order {
 public:
  // REQUIRES: samples >= 1.
  Order(int64_t samples, uint64_t seed);

  int64_t samples() const { return samples_; }
  // The sample at a place. REQUIRES: epoch >= 0, 0 <= position < samples().
  int64_t operator()(Cursor at) const;

  // Takes the next `most` samples, or those that the epoch has left, and moves `at` behind them; an
  // epoch's end is the beginning of the next. REQUIRES: most >= 1.
  std::vector<int64_t> Take(Cursor& at, int64_t most) const;

  // `at` as one line of JSON, with what the order follows from; it says nothing about ranks.
  std::string Save(Cursor at) const;
  // The reverse. Errors: kInvalidArgument naming the key that is missing, of a wrong type or out of
  //   range; kFailedPrecondition when the state is one of another number of samples or seed.
  absl::StatusOr<Cursor> Restore(const std::string& state) const;

 private:
  int64_t samples_;
  uint64_t seed_;
};

// A part [begin, end) of a window's samples.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const Range&) const = default;
};

// Cuts a window of `samples` side by side into micro-batches of `rows` samples, the last of which
// may be shorter. REQUIRES: samples >= 0, rows >= 1.
std::vector<Range> CutMicroBatches(int64_t samples, int64_t rows);

// The micro-batches of one rank: every size-th from its own on, so that earlier ranks have at most
// one more than later ones, which may have none. REQUIRES: 0 <= rank < size.
std::vector<Range> ShareOf(const std::vector<Range>& micro_batches, int rank, int size);

}  // namespace data
