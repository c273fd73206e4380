#include "data/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <queue>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "data/byte_letters.h"
#include "data/text_split.h"

namespace data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

uint64_t Pair(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

absl::Status Wrong(const std::string& why) { return absl::InvalidArgumentError(why); }

// A token in a word that is being merged; neighbours by index, -1: none.
struct Symbol {
  int32_t id = 0;
  int32_t previous = -1;
  int32_t next = -1;
};

// A merge that was possible when it was found.
struct Candidate {
  int32_t rank = 0;
  int32_t left = 0;  // index of the first symbol
  int32_t id = 0;
  uint64_t pair = 0;
  // A queue gives the largest first.
  bool operator<(const Candidate& other) const {
    return std::pair(rank, left) > std::pair(other.rank, other.left);
  }
};

}  // namespace

absl::StatusOr<BpeTokenizer> BpeTokenizer::Make(const Contents& contents) {
  BpeTokenizer tokenizer;
  tokenizer.rules_ = contents.rules;
  const absl::StatusOr<int32_t> size = VocabularySize(contents.vocabulary, contents.added);
  if (!size.ok()) return size.status();
  tokenizer.vocabulary_ = *size;
  for (const auto& [token, id] : contents.vocabulary) {
    tokenizer.bytes_.emplace(id, BytesOfLetters(token));
    tokenizer.ids_.emplace(token, id);
  }
  tokenizer.of_byte_.assign(256, -1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = tokenizer.ids_.find(LetterOfByte(static_cast<uint8_t>(byte)));
    if (found != tokenizer.ids_.end()) {
      tokenizer.of_byte_[static_cast<size_t>(byte)] = found->second;
    }
  }
  if (absl::Status added = tokenizer.AddTokens(contents.added); !added.ok()) return added;
  if (absl::Status merged = tokenizer.AddMerges(contents); !merged.ok()) return merged;
  return tokenizer;
}

absl::Status BpeTokenizer::AddTokens(const std::vector<Added>& added) {
  for (const Added& token : added) {
    const auto known = ids_.find(token.content);
    absl::Status fits = added_.Add(
        token, token.content, known != ids_.end() ? std::optional(known->second) : std::nullopt,
        bytes_.contains(token.id));
    if (!fits.ok()) return fits;
    bytes_[token.id] = token.content;
    if (token.special) special_.insert(token.id);
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddMerges(const Contents& contents) {
  int32_t rank = 0;
  for (const auto& [left, right] : contents.merges) {
    const auto a = ids_.find(left), b = ids_.find(right), both = ids_.find(left + right);
    for (const auto& [token, at] :
         {std::pair(left, a), std::pair(right, b), std::pair(left + right, both)}) {
      if (at == ids_.end()) {
        return Wrong(absl::StrCat("merge ", rank, ", '", left, "' and '", right, "', needs '",
                                  token, "', which is no token"));
      }
    }
    merges_.insert_or_assign(Pair(a->second, b->second), Merge{rank, both->second});
    ++rank;
  }
  return absl::OkStatus();
}

std::vector<int32_t> BpeTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const AddedTokens::Piece& piece : added_.Split(text)) {
    if (piece.token != nullptr) {
      ids.push_back(piece.token->id);
    } else {
      EncodePart(piece.text, ids);
    }
  }
  return ids;
}

void BpeTokenizer::EncodePart(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> parts = {text}, words;
  if (rules_.individual_digits) {
    parts.clear();
    SplitNumbers(text, parts);
  }
  for (const std::string_view part : parts) {
    const bool prefix = rules_.add_prefix_space && !part.starts_with(' ');
    const std::string spaced = prefix ? absl::StrCat(" ", std::string(part)) : std::string(part);
    words.clear();
    if (rules_.use_regex) {
      SplitWords(spaced, words);
    } else {
      words = {spaced};
    }
    for (const std::string_view word : words) EncodeWord(word, ids);
  }
}

void BpeTokenizer::EncodeWord(std::string_view word, std::vector<int32_t>& ids) const {
  if (rules_.ignore_merges) {
    if (const auto found = ids_.find(LettersOfBytes(word)); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<Symbol> symbols;
  for (const char c : word) {
    const int32_t id = of_byte_[static_cast<uint8_t>(c)];
    const auto index = static_cast<int32_t>(symbols.size());
    if (id >= 0 || rules_.unknown) {
      symbols.push_back({id >= 0 ? id : *rules_.unknown, index - 1, index + 1});
    }
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& symbol = symbols[static_cast<size_t>(left)];
    const uint64_t pair = Pair(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
    const auto merge = merges_.find(pair);
    if (merge != merges_.end()) queue.push({merge->second.rank, left, merge->second.id, pair});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(top.left)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (Pair(left.id, right.id) != top.pair) continue;  // one of them was merged meanwhile
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.left;
    consider(left.previous);
    consider(top.left);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

std::string BpeTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    const auto found = bytes_.find(id);
    text += found != bytes_.end() ? std::string_view(found->second) : kReplacement;
  }
  return text;
}

std::optional<int32_t> BpeTokenizer::IdOf(std::string_view token) const {
  if (const AddedToken* const found = added_.Find(token)) return found->id;
  if (const auto found = ids_.find(std::string(token)); found != ids_.end()) return found->second;
  return std::nullopt;
}

}  // namespace data
