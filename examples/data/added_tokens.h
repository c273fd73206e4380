#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/json_fields.h"

namespace data {

// A token that is found in a text as it stands, before words are.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool strip_left = false;   // takes the white space before it along
  bool strip_right = false;  // and behind it
  bool normalized = false;   // is found, normalized itself, in what a normalizer leaves of a text
};

// The tokens of a tokenizer that are found as they stand. Threads: any number may read.
class AddedTokens {
 public:
  // A piece of a text between tokens, not empty, or a token.
  struct Piece {
    std::string_view text;
    const AddedToken* token = nullptr;
  };

  // Finds the token by `pattern`. `known` is the id of that content in the vocabulary, if it has
  // one, and `taken` says whether a token there has the added one's id.
  // Errors: kInvalidArgument naming the token that is empty, has a negative id, is in the
  //   vocabulary with another id, has the id of another token, or comes twice.
  absl::Status Add(const AddedToken& token, std::string_view pattern, std::optional<int32_t> known,
                   bool taken);

  // Cuts a text at the tokens in it, of which the one that begins first, and the longest of those
  // there, counts. Ownership: the pieces are views of `text` and of this object.
  std::vector<Piece> Split(std::string_view text) const;

  // The token of that content; null if there is none. Cost: looks at all of them.
  const AddedToken* Find(std::string_view content) const;

 private:
  // Sets `at` to the token's place, or to the end where there is none, which is null.
  const AddedToken* FindFirst(std::string_view text, size_t& at, size_t& bytes) const;

  std::map<std::string, AddedToken, std::less<>> tokens_;  // by pattern
  std::array<bool, 256> begins_{};
};

// Reads the list "added_tokens" of a tokenizer.json; a missing one is empty. Ids that do not fit
// become ones that AddedTokens::Add or a limit of the vocabulary refuses.
std::vector<AddedToken> ReadAddedTokens(const sherd::JsonObject& object, Fields& fields);

// Reads what says of one of them how it is found, as several files of Hugging Face have it.
void ReadAddedToken(const sherd::JsonObject& object, const std::string& where, Fields& fields,
                    AddedToken& token);

// An integer as an id; one that does not fit becomes -1, or the greatest there is.
int32_t ClampedId(int64_t id);

// One more than the highest id of a vocabulary and what is added to it.
// Errors: kInvalidArgument naming the id that is 2^24 or more, or the token of the vocabulary whose
//   id is negative or that of another one.
absl::StatusOr<int32_t> VocabularySize(const std::map<std::string, int32_t>& vocabulary,
                                       const std::vector<AddedToken>& added);

}  // namespace data
