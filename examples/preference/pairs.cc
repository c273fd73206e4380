#include "preference/pairs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "data/json_lines.h"
#include "preference/loss.h"

namespace preference {
namespace {

absl::Status Check(const std::string& file, size_t number, const Pair& pair, int64_t seq) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": pair ", number, " ", why));
  };
  if (pair.prompt.empty()) return wrong("has an empty prompt");
  if (pair.chosen.empty()) return wrong("has an empty chosen answer");
  if (pair.rejected.empty()) return wrong("has an empty rejected answer");
  if (pair.chosen == pair.rejected) return wrong("has twice the same answer");
  const size_t longest = pair.prompt.size() + std::max(pair.chosen.size(), pair.rejected.size());
  if (longest <= static_cast<size_t>(seq) + 1) return absl::OkStatus();
  return wrong(absl::StrCat("has ", longest, " bytes with its longer answer, and the model takes ",
                            seq + 1, " (--seq)"));
}

Answers MakeAnswers(std::span<const Pair> pairs, std::span<const int64_t> which,
                    std::string Pair::*answer, const sherd::Device& device) {
  size_t longest = 0;
  for (int64_t i : which) {
    const Pair& pair = pairs[static_cast<size_t>(i)];
    longest = std::max(longest, pair.prompt.size() + (pair.*answer).size() - 1);
  }
  const size_t rows = which.size();
  std::vector<int64_t> tokens(rows * longest, 0);
  std::vector<int64_t> labels(rows * longest, kIgnored);
  for (size_t row = 0; row < rows; ++row) {
    const Pair& pair = pairs[static_cast<size_t>(which[row])];
    const std::string text = pair.prompt + pair.*answer;
    for (size_t t = 0; t + 1 < text.size(); ++t) {
      tokens[row * longest + t] = static_cast<unsigned char>(text[t]);
      if (t + 1 < pair.prompt.size()) continue;
      labels[row * longest + t] = static_cast<unsigned char>(text[t + 1]);
    }
  }
  const sherd::Shape shape = {static_cast<int64_t>(rows), static_cast<int64_t>(longest)};
  return {sherd::Tensor::FromHost<int64_t>(device, tokens, shape),
          sherd::Tensor::FromHost<int64_t>(device, labels, shape)};
}

}  // namespace

absl::StatusOr<std::vector<Pair>> ReadPairs(const std::string& file, int64_t seq) {
  absl::StatusOr<std::vector<data::Preference>> read = data::ReadPreferences(file);
  if (!read.ok()) return read.status();
  std::vector<Pair> pairs;
  for (data::Preference& p : *read) {
    pairs.push_back({std::move(p.prompt), std::move(p.chosen), std::move(p.rejected)});
    if (absl::Status good = Check(file, pairs.size(), pairs.back(), seq); !good.ok()) return good;
  }
  return pairs;
}

Batch MakeBatch(std::span<const Pair> pairs, std::span<const int64_t> which,
                const sherd::Device& device) {
  return {MakeAnswers(pairs, which, &Pair::chosen, device),
          MakeAnswers(pairs, which, &Pair::rejected, device),
          {which.begin(), which.end()}};
}

}  // namespace preference
