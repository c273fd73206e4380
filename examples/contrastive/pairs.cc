#include "contrastive/pairs.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "data/json_lines.h"

namespace contrastive {
namespace {

// Gives each text its number.
class Numbers {
 public:
  explicit Numbers(std::vector<std::string>& texts) : texts_(texts) {}

  int64_t Of(const std::string& text) {
    const auto [found, isnew] = numbers_.try_emplace(text, static_cast<int64_t>(texts_.size()));
    if (isnew) texts_.push_back(text);
    return found->second;
  }

 private:
  std::vector<std::string>& texts_;
  std::unordered_map<std::string, int64_t> numbers_;
};

absl::StatusOr<Pair> PairOf(const data::JsonLine& line, Numbers& numbers) {
  Pair pair;
  for (const auto& [key, number] :
       {std::pair("query", &pair.query), std::pair("document", &pair.document)}) {
    const absl::StatusOr<std::string> text = line.Text(key);
    if (!text.ok()) return text.status();
    if (text->empty()) return line.Error(absl::StrCat("\"", key, "\" is empty"));
    *number = numbers.Of(*text);
  }
  if (!line.Has("negatives")) return pair;
  const absl::StatusOr<std::vector<std::string>> negatives = line.Texts("negatives");
  if (!negatives.ok()) return negatives.status();
  for (size_t i = 0; i < negatives->size(); ++i) {
    const std::string& text = (*negatives)[i];
    if (text.empty()) return line.Error(absl::StrCat("\"negatives\"[", i, "] is empty"));
    pair.negatives.push_back(numbers.Of(text));
    if (pair.negatives.back() == pair.document) {
      return line.Error(absl::StrCat("\"negatives\"[", i, "] is the pair's own document"));
    }
  }
  return pair;
}

// Whether any document is a wrong one for any query.
absl::Status CheckToldApart(const PairSet& set, const std::string& file) {
  const Pair& first = set.pairs.front();
  bool same_query = true, same_document = true;
  for (const Pair& pair : set.pairs) {
    if (!pair.negatives.empty()) return absl::OkStatus();
    same_query = same_query && pair.query == first.query;
    same_document = same_document && pair.document == first.document;
  }
  if (!same_query && !same_document) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": ",
                   set.size() == 1 ? "one pair"
                                   : absl::StrCat("all ", set.size(), " pairs have the same ",
                                                  same_document ? "document" : "query"),
                   " and no negatives: there is no document to tell its own from"));
}

}  // namespace

int64_t PairSet::most_negatives() const {
  size_t most = 0;
  for (const Pair& pair : pairs) most = std::max(most, pair.negatives.size());
  return static_cast<int64_t>(most);
}

absl::StatusOr<PairSet> ReadPairs(const std::string& file) {
  const absl::StatusOr<std::vector<data::JsonLine>> lines = data::ReadJsonLines(file);
  if (!lines.ok()) return lines.status();
  PairSet set;
  Numbers numbers(set.texts);
  for (const data::JsonLine& line : *lines) {
    absl::StatusOr<Pair> pair = PairOf(line, numbers);
    if (!pair.ok()) return pair.status();
    set.pairs.push_back(*std::move(pair));
  }
  if (absl::Status told = CheckToldApart(set, file); !told.ok()) return told;
  return set;
}

}  // namespace contrastive
