#pragma once

#include <cstdint>

#include "data/packing.h"

namespace data {

// What an order counts: rows of tokens, each a sample.
//
// Threads: any number may read at once; a loader reads on its own.
class Samples {
 public:
  virtual ~Samples() = default;

  virtual int64_t size() const = 0;
  // The tokens of a sample, known without reading it. REQUIRES: 0 <= i < size().
  virtual int64_t length(int64_t i) const = 0;
  // Errors: what it throws, the loader throws at the call that would have returned the batch.
  virtual PackedRow Row(int64_t i) const = 0;
};

// The rows of a packing. Ownership: `packing` outlives this object.
class PackedSamples : public Samples {
 public:
  explicit PackedSamples(const Packing& packing) : packing_(packing) {}

  int64_t size() const override { return packing_.rows(); }
  int64_t length(int64_t) const override { return packing_.row_tokens(); }
  PackedRow Row(int64_t i) const override { return packing_.Row(i); }

 private:
  const Packing& packing_;
};

}  // namespace data
