#include "llm/text_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/byte_tokenizer.h"

namespace llm {
namespace {

constexpr int64_t kValidationShare = 20;  // one part in this many

}  // namespace

absl::StatusOr<TextData> ReadText(const std::vector<std::string>& files, int64_t seq) {
  std::vector<uint8_t> text;
  for (const std::string& name : files) {
    const absl::StatusOr<data::TextFile> file = data::TextFile::Open(name);
    if (!file.ok()) return file.status();
    text.insert(text.end(), file->bytes().begin(), file->bytes().end());
  }
  return SplitText(std::move(text), seq);
}

absl::StatusOr<TextData> SplitText(std::vector<uint8_t> text, int64_t seq) {
  const auto bytes = static_cast<int64_t>(text.size());
  const int64_t window = seq + 1;
  if (bytes < 2 * window) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", bytes, " bytes, but --seq ", seq, " needs at least ",
                     2 * window, ": one window of ", window, " bytes to learn and one to measure"));
  }
  const int64_t held_out = std::max(bytes / kValidationShare, window);
  TextData data;
  data.validation.assign(text.end() - held_out, text.end());
  text.resize(static_cast<size_t>(bytes - held_out));
  data.train = std::move(text);
  return data;
}

std::vector<int64_t> ValidationWindows(int64_t bytes, int64_t seq, int64_t most) {
  const int64_t fit = (bytes - 1) / seq;
  const int64_t count = std::min(fit, most);
  std::vector<int64_t> starts;
  starts.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) starts.push_back(i * fit / count * seq);
  return starts;
}

void CopyWindow(std::span<const uint8_t> text, int64_t start, std::span<int64_t> inputs,
                std::span<int64_t> targets) {
  const uint8_t* window = text.data() + start;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = window[i];
    targets[i] = window[i + 1];
  }
}

}  // namespace llm
