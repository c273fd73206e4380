#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "data/added_tokens.h"

namespace data {

// A byte-level tokenizer of pairs that are merged, as GPT-2 and SmolLM2 have: tokens are of bytes,
// so any text has some.
//
// A text is cut at the added tokens in it, then into words (text_split.h); of a word's bytes, the
// two neighbours whose merge comes first in the list are merged until none is left. What comes out
// is what the package `tokenizers` says without the tokens of a template around it.
// Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
// Threads: any number may call.
class BpeTokenizer {
 public:
  using Added = AddedToken;
  // How a text is cut and merged; the names are those of tokenizer.json.
  struct Rules {
    bool individual_digits = false;  // each number is a word of its own
    bool add_prefix_space = false;   // a text that begins without a space is given one
    bool use_regex = true;           // false: a text is one word
    bool ignore_merges = false;      // a word that is a token is that token
    std::optional<int32_t> unknown;  // for bytes that have no token; none: they are passed over
  };
  // What files say, for callers that have it from elsewhere. Tokens and merges are written with a
  // letter for each byte, as GPT-2's files have them.
  struct Contents {
    std::map<std::string, int32_t> vocabulary;
    std::vector<std::pair<std::string, std::string>> merges;  // the first is merged first
    std::vector<Added> added;
    Rules rules;
  };

  // Reads a tokenizer.json, or a folder with one, or with vocab.json and merges.txt, which mean the
  // rules of GPT-2 and its "<|endoftext|>".
  // Cost: memory in proportion to the files.
  // Errors: those of MappedFile::Open; kInvalidArgument naming the file, and the field with its
  //   value that is missing, of another type, or asks for what this class does not do; those of
  //   Make.
  static absl::StatusOr<BpeTokenizer> Load(const std::string& folder_or_file);
  // Errors: kInvalidArgument naming the token whose id is negative, 2^24 or more, or taken, the
  //   merge whose parts or result are no tokens, or an added token that is empty.
  static absl::StatusOr<BpeTokenizer> Make(const Contents& contents);

  // Cost: n log n in the longest word. A byte that is no UTF-8 is a character of its own.
  std::vector<int32_t> Encode(std::string_view text) const;
  // The bytes of the tokens, added ones as they stand; U+FFFD for an id that has no token. Tokens
  // of half a character give bytes that are no UTF-8.
  std::string Decode(std::span<const int32_t> ids) const;

  // The id of an added token, or of any token as the files write it; nothing if there is none.
  std::optional<int32_t> IdOf(std::string_view token) const;
  bool IsSpecial(int32_t id) const { return special_.contains(id); }
  // One more than the highest id.
  int32_t vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };

  BpeTokenizer() = default;
  absl::Status AddMerges(const Contents& contents);
  absl::Status AddTokens(const std::vector<Added>& added);
  void EncodePart(std::string_view text, std::vector<int32_t>& ids) const;
  void EncodeWord(std::string_view word, std::vector<int32_t>& ids) const;

  Rules rules_;
  int32_t vocabulary_ = 0;
  std::unordered_map<int32_t, std::string> bytes_;  // of each id; they need not be dense
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, Merge> merges_;  // by both ids
  std::vector<int32_t> of_byte_;                // 256, -1: none
  AddedTokens added_;
  std::set<int32_t> special_;
};

}  // namespace data
