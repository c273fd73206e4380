#include "data/turns.h"

#include <numeric>
#include <utility>

namespace data {

std::vector<std::vector<int64_t>> MicroBatchesOf(std::span<const int64_t> window,
                                                 const std::vector<Range>& ranges, int rank,
                                                 int size) {
  std::vector<std::vector<int64_t>> mine;
  for (const Range& range : ShareOf(ranges, rank, size)) {
    mine.emplace_back(window.begin() + range.begin, window.begin() + range.end);
  }
  return mine;
}

std::vector<int64_t> Numbers(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

Turns::Turns(const Order& order, Cursor at, int64_t window, Cut cut, int rank, int size)
    : order_(order), at_(at), window_(window), cut_(std::move(cut)), rank_(rank), size_(size) {}

std::optional<std::vector<int64_t>> Turns::operator()() {
  if (!open_) {
    const std::vector<int64_t> window = order_.Take(at_, window_);
    mine_ = MicroBatchesOf(window, cut_(window), rank_, size_);
    taken_ = 0;
    open_ = true;
  }
  if (taken_ < mine_.size()) return std::move(mine_[taken_++]);
  open_ = false;
  return std::nullopt;
}

}  // namespace data
