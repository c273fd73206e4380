#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "data/wordpiece_tokenizer.h"

namespace contrastive {

// A tokenizer for texts without a folder: BERT's special tokens, then each character that begins or
// continues a word of the texts, then their most frequent words; `size` tokens at most, the more
// frequent first, so that the same texts make the same vocabulary. Its rules are those of an
// uncased BERT.
//
// Errors: kInvalidArgument if `size` holds no more than the special tokens.
absl::StatusOr<data::WordPieceTokenizer> MakeVocabulary(std::span<const std::string> texts,
                                                        int64_t size);

}  // namespace contrastive
