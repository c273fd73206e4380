#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/documents.h"

namespace data {

// A part of one document that lies in one row.
struct Piece {
  int64_t begin = 0;         // its first token among all
  int64_t length = 0;        // at least 1
  int64_t document_end = 0;  // behind the document's last token
};

// One row of a batch. Shapes: tokens, labels, positions and segments have the row's length.
struct PackedRow {
  std::vector<int64_t> tokens;     // 0 where there is none
  std::vector<int64_t> labels;     // the next token of the same document, kIgnored at its end
  std::vector<int64_t> positions;  // from 0 in each piece
  std::vector<int64_t> segments;   // from 1, one for each piece; 0 where there is no token
  std::vector<int64_t> bounds;     // where each piece begins, and behind the last its end
};

// Packs documents into rows of `row_tokens` tokens, each of which is one sample.
//
// Documents that fit stay whole, longer ones are cut into full rows and a rest; a piece goes to the
// fullest row that has room for it. Every token is in exactly one place. What follows from
// `documents` alone is the same on every rank, so packing comes before any order is cut over ranks.
// Cost: O(pieces log rows) once; three words a piece.
class Packing {
 public:
  // Ownership: `documents` outlives this object. REQUIRES: row_tokens >= 1.
  Packing(const Documents& documents, int64_t row_tokens);

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t row_tokens() const { return row_tokens_; }
  std::span<const Piece> pieces(int64_t row) const { return rows_[static_cast<size_t>(row)]; }
  // Threads: any number may call. REQUIRES: 0 <= row < rows().
  PackedRow Row(int64_t row) const;

 private:
  const Documents& documents_;
  const int64_t row_tokens_;
  std::vector<std::vector<Piece>> rows_;
};

}  // namespace data
