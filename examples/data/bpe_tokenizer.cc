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

constexpr int32_t kMostTokens = 1 << 24;
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
  int32_t most = -1;
  for (const auto& [token, id] : contents.vocabulary) most = std::max(most, id);
  for (const Added& added : contents.added) most = std::max(most, added.id);
  if (most >= kMostTokens) {
    return Wrong(absl::StrCat("token id ", most, " is ", kMostTokens, " or more"));
  }
  tokenizer.vocabulary_ = most + 1;
  for (const auto& [token, id] : contents.vocabulary) {
    if (id < 0 || !tokenizer.bytes_.emplace(id, BytesOfLetters(token)).second) {
      return Wrong(absl::StrCat("token '", token, "' has id ", id,
                                id < 0 ? ", a negative one" : ", which another one has"));
    }
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
    if (token.content.empty()) return Wrong(absl::StrCat("added token ", token.id, " is empty"));
    if (token.id < 0) {
      return Wrong(absl::StrCat("added token '", token.content, "' has id ", token.id));
    }
    const auto known = ids_.find(token.content);
    const bool same = known != ids_.end() && known->second == token.id;
    if (!same && (known != ids_.end() || bytes_.contains(token.id))) {
      return Wrong(absl::StrCat("added token '", token.content, "' has id ", token.id, ", but ",
                                known != ids_.end()
                                    ? absl::StrCat("is token ", known->second, " of the vocabulary")
                                    : std::string("that of another token")));
    }
    if (!added_.emplace(token.content, token).second) {
      return Wrong(absl::StrCat("added token '", token.content, "' comes twice"));
    }
    bytes_[token.id] = token.content;
    begins_added_[static_cast<uint8_t>(token.content[0])] = true;
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

const BpeTokenizer::Added* BpeTokenizer::FindAdded(std::string_view text, size_t& at) const {
  for (at = 0; at < text.size(); ++at) {
    if (!begins_added_[static_cast<uint8_t>(text[at])]) continue;
    const Added* best = nullptr;
    for (const auto& [content, token] : added_) {
      if (!text.substr(at).starts_with(content)) continue;
      if (best == nullptr || content.size() > best->content.size()) best = &token;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

std::vector<int32_t> BpeTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t at = 0;
    const Added* const token = FindAdded(text, at);
    std::string_view before = text.substr(0, at);
    text.remove_prefix(before.size() + (token != nullptr ? token->content.size() : 0));
    if (token != nullptr && token->strip_left) before.remove_suffix(TrailingSpace(before));
    EncodePart(before, ids);
    if (token == nullptr) break;
    ids.push_back(token->id);
    if (token->strip_right) text.remove_prefix(LeadingSpace(text));
  }
  return ids;
}

void BpeTokenizer::EncodePart(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
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
  if (const auto found = added_.find(token); found != added_.end()) return found->second.id;
  if (const auto found = ids_.find(std::string(token)); found != ids_.end()) return found->second;
  return std::nullopt;
}

}  // namespace data
