#include "data/added_tokens.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/text_split.h"

namespace data {
namespace {

constexpr int32_t kMostTokens = 1 << 24;

}  // namespace

absl::Status AddedTokens::Add(const AddedToken& token, std::string_view pattern,
                              std::optional<int32_t> known, bool taken) {
  const auto wrong = [](const std::string& why) { return absl::InvalidArgumentError(why); };
  if (token.content.empty()) return wrong(absl::StrCat("added token ", token.id, " is empty"));
  const std::string shown = absl::StrCat("added token '", token.content, "'");
  if (pattern.empty()) return wrong(absl::StrCat(shown, " is empty when it is normalized"));
  if (token.id < 0) return wrong(absl::StrCat(shown, " has id ", token.id));
  if (known != token.id && (known || taken)) {
    return wrong(absl::StrCat(
        shown, " has id ", token.id, ", but ",
        known ? absl::StrCat("is token ", *known, " of the vocabulary") : "that of another token"));
  }
  if (!tokens_.emplace(pattern, token).second) return wrong(absl::StrCat(shown, " comes twice"));
  begins_[static_cast<uint8_t>(pattern[0])] = true;
  return absl::OkStatus();
}

const AddedToken* AddedTokens::FindFirst(std::string_view text, size_t& at, size_t& bytes) const {
  for (at = 0; at < text.size(); ++at) {
    if (!begins_[static_cast<uint8_t>(text[at])]) continue;
    const AddedToken* best = nullptr;
    for (const auto& [pattern, token] : tokens_) {
      if (!text.substr(at).starts_with(pattern)) continue;
      if (best != nullptr && pattern.size() <= bytes) continue;
      best = &token;
      bytes = pattern.size();
    }
    if (best != nullptr) return best;
  }
  bytes = 0;
  return nullptr;
}

std::vector<AddedTokens::Piece> AddedTokens::Split(std::string_view text) const {
  std::vector<Piece> pieces;
  while (!text.empty()) {
    size_t at = 0, bytes = 0;
    const AddedToken* const token = FindFirst(text, at, bytes);
    std::string_view before = text.substr(0, at);
    text.remove_prefix(before.size() + bytes);
    if (token != nullptr && token->strip_left) before.remove_suffix(TrailingSpace(before));
    if (!before.empty()) pieces.push_back({before, nullptr});
    if (token == nullptr) break;
    pieces.push_back({{}, token});
    if (token->strip_right) text.remove_prefix(LeadingSpace(text));
  }
  return pieces;
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  for (const auto& [pattern, token] : tokens_) {
    if (token.content == content) return &token;
  }
  return nullptr;
}

int32_t ClampedId(int64_t id) {
  return static_cast<int32_t>(std::clamp<int64_t>(id, -1, INT32_MAX));
}

absl::StatusOr<int32_t> VocabularySize(const std::map<std::string, int32_t>& vocabulary,
                                       const std::vector<AddedToken>& added) {
  int32_t most = -1;
  for (const auto& [token, id] : vocabulary) most = std::max(most, id);
  for (const AddedToken& token : added) most = std::max(most, token.id);
  if (most >= kMostTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", most, " is ", kMostTokens, " or more"));
  }
  std::unordered_set<int32_t> seen;
  for (const auto& [token, id] : vocabulary) {
    if (id < 0 || !seen.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("token '", token, "' has id ", id,
                       id < 0 ? ", a negative one" : ", which another one has"));
    }
  }
  return most + 1;
}

void ReadAddedToken(const sherd::JsonObject& object, const std::string& where, Fields& fields,
                    AddedToken& token) {
  fields.Nothing(object, where, {"single_word"});
  token.content = fields.Get<std::string>(object, where, "content", "a string");
  token.special = fields.Flag(object, where, "special", false);
  token.strip_left = fields.Flag(object, where, "lstrip", false);
  token.strip_right = fields.Flag(object, where, "rstrip", false);
  token.normalized = fields.Flag(object, where, "normalized", !token.special);
}

std::vector<AddedToken> ReadAddedTokens(const sherd::JsonObject& object, Fields& fields) {
  std::vector<AddedToken> tokens;
  if (!object.contains("added_tokens")) return tokens;
  const auto all = fields.Get<sherd::JsonArray>(object, "", "added_tokens", "an array");
  for (size_t i = 0; i < all.size() && fields.ok(); ++i) {
    const std::string name = absl::StrCat("added_tokens[", i, "]"), where = name + ".";
    const auto* const entry = std::get_if<sherd::JsonObject>(&all[i].value);
    if (entry == nullptr) {
      fields.Fail(name, "is no object");
      break;
    }
    fields.Only(*entry, where,
                {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = ClampedId(fields.Get<int64_t>(*entry, where, "id", "an integer"));
    ReadAddedToken(*entry, where, fields, token);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace data
