#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "data/added_tokens.h"
#include "data/bert_text.h"

namespace data {

// A tokenizer of word pieces, as the folders of BERT and MiniLM encoders describe it.
//
// A text is cut at the added tokens in it, such as [SEP] and [MASK]; what lies between is
// normalized and cut into words (bert_text.h). A word becomes the longest token it begins with,
// then the longest one with the prefix "##" that the rest begins with, and so on; where there is
// none, the whole word becomes the unknown token. What comes out is what the package `tokenizers`
// says, tokens around the text included.
// Source: Schuster and Nakajima 2012, "Japanese and Korean Voice Search"; Devlin et al. 2018.
// Threads: any number may call.
class WordPieceTokenizer {
 public:
  struct Rules {
    BertRules text;
    std::string continuing = "##";  // before a piece that does not begin its word
    int64_t max_characters = 100;   // a longer word is unknown
    std::string unknown = "[UNK]";  // tokens, as the vocabulary writes them
    std::string pad = "[PAD]";
    std::vector<std::string> before = {"[CLS]"};  // put before a text
    std::vector<std::string> behind = {"[SEP]"};  // and behind it
  };
  // What files say, for callers that have it from elsewhere.
  struct Contents {
    std::map<std::string, int32_t> vocabulary;
    std::vector<AddedToken> added;
    Rules rules;
  };

  // Reads a folder's tokenizer.json, or the tokenizer.json itself; or where a folder has none, its
  // vocab.txt, a token a line, whose rules are those of BERT as tokenizer_config.json changes them.
  //
  // Of a folder, tokenizer_config.json and special_tokens_map.json say which token pads. What a
  // tokenizer.json asks for about truncation and padding is not done: callers say how many tokens
  // they want, as those of transformers do.
  // Cost: memory in proportion to the files.
  // Errors: those of MappedFile::Open; kInvalidArgument naming the file, and the field or line that
  //   is missing, of another type, asks for what this class does not do, or contradicts another
  //   file; those of Make.
  static absl::StatusOr<WordPieceTokenizer> Load(const std::string& folder_or_file);
  // Errors: kInvalidArgument naming the token whose id is negative, 2^24 or more, or taken, that of
  //   the rules which is none, the added one that is empty, or max_characters below 1.
  static absl::StatusOr<WordPieceTokenizer> Make(const Contents& contents);

  // The tokens of a text between those around it, of which the last are left out where there would
  // be more than `max_tokens` in all. REQUIRES: max_tokens >= around(); fewer count as that many.
  // Cost: of a word, its length times that of the longest token. Memory: some times the text's.
  // A byte that is no UTF-8 counts as U+FFFD, which texts lose when they are cleaned.
  std::vector<int32_t> Encode(std::string_view text,
                              int64_t max_tokens = std::numeric_limits<int64_t>::max()) const;
  // How many tokens are put around any text.
  int64_t around() const { return static_cast<int64_t>(before_.size() + behind_.size()); }

  // As the files write it; empty where no token has that id. Ownership: a view of this object.
  std::string_view Token(int32_t id) const;
  std::optional<int32_t> IdOf(std::string_view token) const;
  int32_t pad() const { return pad_; }
  int32_t unknown() const { return unknown_; }
  // One more than the highest id.
  int32_t vocabulary() const { return vocabulary_; }

 private:
  // Lets a view be looked up among strings.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  WordPieceTokenizer() = default;
  absl::Status AddTokens(const std::vector<AddedToken>& added);
  absl::Status SetRules(const Rules& rules);
  // Append ids until there are `most` or more.
  void EncodePart(std::string_view text, size_t most, std::vector<int32_t>& ids) const;
  void EncodeWord(std::string_view word, std::vector<int32_t>& ids) const;
  // The id of the longest token of more than `prefix` bytes that `text` begins with, and its bytes.
  std::optional<int32_t> LongestOf(std::string_view text, size_t prefix, size_t& bytes) const;

  BertRules text_;
  std::string continuing_;
  int64_t max_characters_ = 0;
  int32_t vocabulary_ = 0;
  int32_t pad_ = 0;
  int32_t unknown_ = 0;
  std::vector<int32_t> before_, behind_;
  size_t longest_ = 0;  // bytes of a token
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::unordered_map<int32_t, std::string> tokens_;  // by id; they need not be dense
  AddedTokens raw_;                                  // found in a text as it is
  AddedTokens normalized_;                           // and in what the normalizer leaves of it
};

}  // namespace data
