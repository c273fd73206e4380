#include "data/documents.h"

#include <algorithm>
#include <utility>

namespace data {

void DocumentList::Add(std::span<const int64_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  bounds_.push_back(static_cast<int64_t>(tokens_.size()));
}

void DocumentList::Copy(int64_t begin, std::span<int64_t> out) const {
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
}

JoinedDocuments::JoinedDocuments(std::vector<const Documents*> parts) : parts_(std::move(parts)) {
  for (const Documents* part : parts_) {
    const int64_t start = bounds_.back();
    starts_.push_back(start);
    for (int64_t bound : part->bounds().subspan(1)) bounds_.push_back(start + bound);
  }
}

void JoinedDocuments::Copy(int64_t begin, std::span<int64_t> out) const {
  auto part = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) -
                                  starts_.begin());
  for (; !out.empty(); ++part) {
    const int64_t from = begin - starts_[part - 1];
    const auto left = static_cast<size_t>(parts_[part - 1]->tokens() - from);
    const size_t count = std::min(left, out.size());
    parts_[part - 1]->Copy(from, out.first(count));
    out = out.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

DocumentSlice::DocumentSlice(const Documents& all, int64_t begin, int64_t end)
    : all_(all), begin_(begin) {
  const std::span<const int64_t> bounds = all.bounds();
  for (auto next = std::upper_bound(bounds.begin(), bounds.end(), begin);
       next != bounds.end() && *next < end; ++next) {
    bounds_.push_back(*next - begin);
  }
  if (end > begin) bounds_.push_back(end - begin);
}

}  // namespace data
