#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace contrastive {

// A query and the document that answers it, as numbers of texts.
struct Pair {
  int64_t query = 0;
  int64_t document = 0;
  std::vector<int64_t> negatives;  // documents that do not answer it although they look like it
};

// Pairs over texts of which each is there once, so that a number is an id: two pairs with the same
// document are no wrong answers to each other.
struct PairSet {
  std::vector<std::string> texts;
  std::vector<Pair> pairs;

  int64_t size() const { return static_cast<int64_t>(pairs.size()); }
  int64_t most_negatives() const;  // of one pair
};

// Reads a JSON-lines file of {"query", "document"} and, where there are any, "negatives": an array.
//
// Errors: those of data::ReadJsonLines; kInvalidArgument naming file and line if a key is missing
// or
//   of a wrong type, a text is empty, or a negative is the pair's own document; kInvalidArgument
//   naming the file whose pairs all have the same query or document, as one pair alone, without
//   negatives, since there is nothing to tell a document from.
absl::StatusOr<PairSet> ReadPairs(const std::string& file);

}  // namespace contrastive
