#include "preference/pairs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/json_lines.h"
#include "preference/loss.h"

namespace preference {
namespace {

absl::Status Check(const data::JsonLine& line, const Pair& pair, int64_t seq) {
  if (pair.prompt.empty()) return line.Error("the prompt is empty");
  if (pair.chosen.empty()) return line.Error("the chosen answer is empty");
  if (pair.rejected.empty()) return line.Error("the rejected answer is empty");
  if (pair.chosen == pair.rejected) return line.Error("both answers are the same");
  const size_t longest = pair.prompt.size() + std::max(pair.chosen.size(), pair.rejected.size());
  if (longest <= static_cast<size_t>(seq) + 1) return absl::OkStatus();
  return line.Error(absl::StrCat("prompt and longer answer have ", longest,
                                 " bytes, and the model takes ", seq + 1, " (--seq)"));
}

absl::StatusOr<Pair> PairOf(const data::JsonLine& line) {
  Pair pair;
  for (const auto& [key, field] :
       {std::pair("prompt", &Pair::prompt), std::pair("chosen", &Pair::chosen),
        std::pair("rejected", &Pair::rejected)}) {
    absl::StatusOr<std::string> text = line.Text(key);
    if (!text.ok()) return text.status();
    pair.*field = *std::move(text);
  }
  return pair;
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
  const absl::StatusOr<std::vector<data::JsonLine>> lines = data::ReadJsonLines(file);
  if (!lines.ok()) return lines.status();
  std::vector<Pair> pairs;
  for (const data::JsonLine& line : *lines) {
    absl::StatusOr<Pair> pair = PairOf(line);
    if (!pair.ok()) return pair.status();
    if (absl::Status good = Check(line, *pair, seq); !good.ok()) return good;
    pairs.push_back(*std::move(pair));
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
