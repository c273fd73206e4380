// What the examples are trained on.
#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "data/json_lines.h"
#include "data/token_file.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/targets.h"

namespace sherd::fuzz {
namespace {

constexpr int64_t kVocabulary = 100;

bool Names(const absl::Status& status, const std::string& file) {
  return absl::StrContains(status.message(), file);
}

bool Between(int64_t id, int64_t vocabulary) { return id >= 0 && id < vocabulary; }

}  // namespace

void PlayTokenFile(std::string_view input) {
  if (input.size() < 5) return;
  const auto byte = [&input](size_t i) { return static_cast<uint8_t>(input[i]); };
  const auto format = static_cast<data::TokenFormat>(byte(0) % 4);
  const bool with_index = (byte(0) & 4) != 0 || format == data::TokenFormat::kMegatron;
  const int64_t vocabulary = 1 + 257 * int64_t{byte(1)};
  const std::optional<int64_t> end =
      byte(2) % 2 == 0 ? std::nullopt : std::optional<int64_t>(byte(2) / 2);
  const size_t index_bytes = byte(3) + 256 * size_t{byte(4)};
  input.remove_prefix(5);
  InputFiles files;
  if (with_index) {
    files.Add("x.idx", input.substr(0, index_bytes));
    input.remove_prefix(std::min(index_bytes, input.size()));
  }
  const std::string name = files.Add("x.bin", input);
  const auto file = data::TokenFile::Open(name, vocabulary, format, end);
  if (!file.ok()) {
    Require(Names(file.status(), name.substr(0, name.size() - 4)), "an error names no file");
    return;
  }
  const std::span<const int64_t> bounds = file->bounds();
  Require(bounds.size() >= 2 && bounds.front() == 0, "documents do not begin at 0");
  Require(std::is_sorted(bounds.begin(), bounds.end()), "documents overlap");
  Require(file->tokens() <= static_cast<int64_t>(input.size()), "tokens without bytes");
  if (format == data::TokenFormat::kLlmC) {
    int32_t told = 0;
    std::memcpy(&told, input.data() + 8, sizeof(told));
    Require(told == file->tokens(), "a header of another number of tokens");
  }
  std::vector<int64_t> tokens(static_cast<size_t>(file->tokens()));
  file->Copy(0, tokens);
  for (const int64_t token : tokens) Require(Between(token, vocabulary), "a token beyond");
  if (end) {
    for (size_t i = 1; i + 1 < bounds.size(); ++i) {
      Require(tokens[static_cast<size_t>(bounds[i]) - 1] == *end, "a document ends elsewhere");
    }
  }
}

void PlayJsonLines(std::string_view input) {
  InputFiles files;
  const std::string name = files.Add("x.jsonl", input);
  const auto samples = data::ReadSamples(name, kVocabulary);
  if (!samples.ok()) {
    Require(Names(samples.status(), name), "an error of JSON lines names no file");
    return;
  }
  Require(!samples->empty(), "a file without samples");
  int64_t before = 0;
  for (const data::Sample& sample : *samples) {
    Require(sample.line > before, "samples are out of order");
    before = sample.line;
    Require(sample.text.empty() != sample.tokens.empty(), "a sample is neither text nor tokens");
    Require(sample.tokens.size() == sample.labels.size(), "labels are missing");
    for (const int64_t id : sample.tokens) Require(Between(id, kVocabulary), "a token beyond");
    for (const int64_t id : sample.labels) {
      Require(id == data::kIgnored || Between(id, kVocabulary), "a label beyond");
    }
  }
}

}  // namespace sherd::fuzz
