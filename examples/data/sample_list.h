#pragma once

#include <vector>

#include "data/json_lines.h"
#include "data/samples.h"

namespace data {

// Samples in memory, each a row of its own length. Those with a text have a token a byte, and the
// byte after each for its label; the last has none.
class SampleList : public Samples {
 public:
  explicit SampleList(const std::vector<Sample>& samples);

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  int64_t length(int64_t i) const override;
  PackedRow Row(int64_t i) const override;

 private:
  struct Kept {
    std::vector<int64_t> tokens, labels;
  };
  std::vector<Kept> rows_;
};

}  // namespace data
