#include "data/wordpiece_tokenizer.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace data {
namespace {

bool ContinuesCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

}  // namespace

absl::StatusOr<WordPieceTokenizer> WordPieceTokenizer::Make(const Contents& contents) {
  const absl::StatusOr<int32_t> size = VocabularySize(contents.vocabulary, contents.added);
  if (!size.ok()) return size.status();
  WordPieceTokenizer tokenizer;
  tokenizer.vocabulary_ = *size;
  tokenizer.text_ = contents.rules.text;
  for (const auto& [token, id] : contents.vocabulary) {
    tokenizer.ids_.emplace(token, id);
    tokenizer.tokens_.emplace(id, token);
    tokenizer.longest_ = std::max(tokenizer.longest_, token.size());
  }
  if (absl::Status added = tokenizer.AddTokens(contents.added); !added.ok()) return added;
  if (absl::Status rules = tokenizer.SetRules(contents.rules); !rules.ok()) return rules;
  return tokenizer;
}

absl::Status WordPieceTokenizer::AddTokens(const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) {
    const auto known = ids_.find(token.content);
    const std::optional<int32_t> id =
        known != ids_.end() ? std::optional(known->second) : std::nullopt;
    const std::string pattern =
        token.normalized ? NormalizeBert(token.content, text_) : token.content;
    absl::Status fits =
        (token.normalized ? normalized_ : raw_).Add(token, pattern, id, tokens_.contains(token.id));
    if (!fits.ok()) return fits;
    tokens_.emplace(token.id, token.content);
  }
  return absl::OkStatus();
}

absl::Status WordPieceTokenizer::SetRules(const Rules& rules) {
  if (rules.max_characters < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("words of up to ", rules.max_characters, " characters"));
  }
  max_characters_ = rules.max_characters;
  continuing_ = rules.continuing;
  absl::Status status;
  const auto find = [&](const std::string& token, const char* what) {
    const std::optional<int32_t> id = IdOf(token);
    if (!id && status.ok()) {
      status = absl::InvalidArgumentError(
          absl::StrCat("the token ", what, ", '", token, "', is not in the vocabulary"));
    }
    return id.value_or(0);
  };
  unknown_ = find(rules.unknown, "for unknown words");
  pad_ = find(rules.pad, "that pads");
  for (const std::string& token : rules.before) before_.push_back(find(token, "before texts"));
  for (const std::string& token : rules.behind) behind_.push_back(find(token, "behind texts"));
  return status;
}

std::vector<int32_t> WordPieceTokenizer::Encode(std::string_view text, int64_t max_tokens) const {
  std::vector<int32_t> ids = before_;
  const size_t most = std::max(static_cast<size_t>(std::max<int64_t>(max_tokens, 0)),
                               before_.size() + behind_.size()) -
                      behind_.size();
  for (const AddedTokens::Piece& piece : raw_.Split(text)) {
    if (ids.size() >= most) break;
    if (piece.token != nullptr) {
      ids.push_back(piece.token->id);
    } else {
      EncodePart(piece.text, most, ids);
    }
  }
  ids.resize(std::min(ids.size(), most));
  ids.insert(ids.end(), behind_.begin(), behind_.end());
  return ids;
}

void WordPieceTokenizer::EncodePart(std::string_view text, size_t most,
                                    std::vector<int32_t>& ids) const {
  const std::string normalized = NormalizeBert(text, text_);
  std::vector<std::string_view> words;
  for (const AddedTokens::Piece& piece : normalized_.Split(normalized)) {
    if (piece.token != nullptr) {
      ids.push_back(piece.token->id);
      continue;
    }
    words.clear();
    SplitBert(piece.text, words);
    for (const std::string_view word : words) {
      if (ids.size() >= most) return;
      EncodeWord(word, ids);
    }
  }
}

void WordPieceTokenizer::EncodeWord(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  const int64_t continued = std::count_if(word.begin(), word.end(), ContinuesCharacter);
  bool known = static_cast<int64_t>(word.size()) - continued <= max_characters_;
  std::string rest;
  for (size_t at = 0; known && at < word.size();) {
    rest = at > 0 ? continuing_ : "";
    const size_t prefix = rest.size();
    rest += word.substr(at, longest_);
    size_t bytes = 0;
    if (const std::optional<int32_t> id = LongestOf(rest, prefix, bytes)) {
      ids.push_back(*id);
      at += bytes - prefix;
    } else {
      known = false;
    }
  }
  if (known) return;
  ids.resize(before);
  ids.push_back(unknown_);
}

std::optional<int32_t> WordPieceTokenizer::LongestOf(std::string_view text, size_t prefix,
                                                     size_t& bytes) const {
  for (bytes = std::min(text.size(), longest_); bytes > prefix; --bytes) {
    if (bytes < text.size() && ContinuesCharacter(text[bytes])) continue;
    const auto found = ids_.find(text.substr(0, bytes));
    if (found != ids_.end()) return found->second;
  }
  return std::nullopt;
}

std::string_view WordPieceTokenizer::Token(int32_t id) const {
  const auto found = tokens_.find(id);
  return found != tokens_.end() ? std::string_view(found->second) : std::string_view();
}

std::optional<int32_t> WordPieceTokenizer::IdOf(std::string_view token) const {
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  for (const AddedTokens* const added : {&raw_, &normalized_}) {
    if (const AddedToken* const found = added->Find(token)) return found->id;
  }
  return std::nullopt;
}

}  // namespace data
