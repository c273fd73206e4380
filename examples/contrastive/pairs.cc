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
  const int64_t first = set.pairs.front().document;
  for (const Pair& pair : set.pairs) {
    if (pair.document != first || !pair.negatives.empty()) return set;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": all ", set.size(), " pairs have the same document: there is none to tell it from"));
}

}  // namespace contrastive
