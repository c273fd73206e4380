#include "data/byte_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace data {

std::vector<int64_t> EncodeBytes(std::string_view text) {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

absl::StatusOr<std::string> DecodeBytes(std::span<const int64_t> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= kByteVocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("token ", tokens[i], " at position ", i,
                                                     " is outside [0, ", kByteVocabulary, ")"));
    }
    text.push_back(static_cast<char>(tokens[i]));
  }
  return text;
}

absl::StatusOr<TextFile> TextFile::Open(const std::string& name) {
  absl::StatusOr<sherd::MappedFile> file = sherd::MappedFile::Open("text file", name);
  if (!file.ok()) return file.status();
  return TextFile(*std::move(file));
}

void TextFile::Copy(int64_t begin, std::span<int64_t> out) const {
  std::copy_n(bytes().begin() + begin, out.size(), out.begin());
}

}  // namespace data
