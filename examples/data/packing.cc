#include "data/packing.h"

#include <algorithm>
#include <map>

namespace data {

Packing::Packing(const Documents& documents, int64_t row_tokens)
    : documents_(documents), row_tokens_(row_tokens) {
  std::multimap<int64_t, size_t> room;  // free tokens of each row that has any
  const std::span<const int64_t> bounds = documents.bounds();
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    for (int64_t begin = bounds[i]; begin < bounds[i + 1];) {
      const int64_t length = std::min(row_tokens, bounds[i + 1] - begin);
      const auto fullest = room.lower_bound(length);
      int64_t left = row_tokens - length;
      size_t row = rows_.size();
      if (fullest != room.end()) {
        left = fullest->first - length;
        row = fullest->second;
        room.erase(fullest);
      } else {
        rows_.emplace_back();
      }
      rows_[row].push_back({begin, length, bounds[i + 1]});
      if (left > 0) room.emplace(left, row);
      begin += length;
    }
  }
}

PackedRow Packing::Row(int64_t row) const {
  const auto size = static_cast<size_t>(row_tokens_);
  PackedRow packed{std::vector<int64_t>(size, 0),
                   std::vector<int64_t>(size, kIgnored),
                   std::vector<int64_t>(size, 0),
                   std::vector<int64_t>(size, 0),
                   {0}};
  size_t at = 0;
  for (const Piece& piece : pieces(row)) {
    const auto length = static_cast<size_t>(piece.length);
    documents_.Copy(piece.begin, std::span(packed.tokens).subspan(at, length));
    // The first token of the rest of a cut document is the last label here.
    const auto labels =
        static_cast<size_t>(std::min(piece.length, piece.document_end - piece.begin - 1));
    documents_.Copy(piece.begin + 1, std::span(packed.labels).subspan(at, labels));
    for (size_t i = 0; i < length; ++i) {
      packed.positions[at + i] = static_cast<int64_t>(i);
      packed.segments[at + i] = static_cast<int64_t>(packed.bounds.size());
    }
    at += length;
    packed.bounds.push_back(static_cast<int64_t>(at));
  }
  return packed;
}

}  // namespace data
