#include "contrastive/vocabulary.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/bert_text.h"

namespace contrastive {
namespace {

constexpr const char* kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

using Counts = std::map<std::string, int64_t, std::less<>>;

// The bytes of the character that a text of UTF-8 begins with.
size_t FirstCharacter(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
  return bytes;
}

// The keys, the most frequent first and those of one count in order.
std::vector<std::string> ByCount(const Counts& counts, int64_t least) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [text, count] : counts) {
    if (count >= least) order.emplace_back(-count, text);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::string> keys;
  for (auto& [count, text] : order) keys.push_back(std::move(text));
  return keys;
}

}  // namespace

absl::StatusOr<data::WordPieceTokenizer> MakeVocabulary(std::span<const std::string> texts,
                                                        int64_t size) {
  if (size <= static_cast<int64_t>(std::size(kSpecial))) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", size, " tokens has no room ",
                                                   "beside ", std::size(kSpecial),
                                                   " special ones"));
  }
  Counts characters, words;
  std::vector<std::string_view> of_text;
  for (const std::string& text : texts) {
    const std::string normal = data::NormalizeBert(text, {});
    of_text.clear();
    data::SplitBert(normal, of_text);
    for (const std::string_view word : of_text) {
      ++words[std::string(word)];
      for (size_t at = 0; at < word.size();) {
        const size_t bytes = FirstCharacter(word.substr(at));
        ++characters[(at > 0 ? "##" : "") + std::string(word.substr(at, bytes))];
        at += bytes;
      }
    }
  }
  data::WordPieceTokenizer::Contents contents;
  const auto add = [&](const std::string& token) {
    const auto id = static_cast<int32_t>(contents.vocabulary.size());
    if (id < size) contents.vocabulary.try_emplace(token, id);
  };
  for (const char* token : kSpecial) {
    add(token);
    contents.added.push_back(
        {.id = contents.vocabulary.at(token), .content = token, .special = true});
  }
  for (const std::string& token : ByCount(characters, 1)) add(token);
  for (const std::string& token : ByCount(words, 2)) add(token);
  return data::WordPieceTokenizer::Make(contents);
}

}  // namespace contrastive
