#include "data/sample_list.h"

#include <numeric>

#include "data/byte_tokenizer.h"

namespace data {

SampleList::SampleList(const std::vector<Sample>& samples) {
  rows_.reserve(samples.size());
  for (const Sample& sample : samples) {
    Kept& row = rows_.emplace_back(Kept{sample.tokens, sample.labels});
    if (sample.text.empty()) continue;
    row.tokens = EncodeBytes(sample.text);
    row.labels.assign(row.tokens.begin() + 1, row.tokens.end());
    row.labels.push_back(kIgnored);
  }
}

int64_t SampleList::length(int64_t i) const {
  return static_cast<int64_t>(rows_[static_cast<size_t>(i)].tokens.size());
}

PackedRow SampleList::Row(int64_t i) const {
  const Kept& kept = rows_[static_cast<size_t>(i)];
  PackedRow row{kept.tokens, kept.labels, kept.tokens, {}, {0, length(i)}};
  std::iota(row.positions.begin(), row.positions.end(), int64_t{0});
  row.segments.assign(kept.tokens.size(), 1);
  return row;
}

}  // namespace data
