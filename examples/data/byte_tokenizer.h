#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "data/documents.h"
#include "sherd/runtime/io/mapped_file.h"

namespace data {

// The tokens of a text are its bytes, so any text has tokens and they are below this.
inline constexpr int64_t kByteVocabulary = 256;

// Gives the tokens of a text, one a byte.
std::vector<int64_t> EncodeBytes(std::string_view text);

// Gives the text of tokens. Errors: kInvalidArgument naming position and value of a token outside
//   [0, kByteVocabulary).
absl::StatusOr<std::string> DecodeBytes(std::span<const int64_t> tokens);

// A text file as one document, which is mapped, not read.
class TextFile : public Documents {
 public:
  // Errors: those of MappedFile::Open, about a "text file".
  static absl::StatusOr<TextFile> Open(const std::string& name);

  // The text, at least one byte. Ownership: valid while this object or one moved from it lives.
  std::span<const uint8_t> bytes() const { return file_.bytes(); }

  std::span<const int64_t> bounds() const override { return bounds_; }
  void Copy(int64_t begin, std::span<int64_t> out) const override;

 private:
  explicit TextFile(sherd::MappedFile file)
      : file_(std::move(file)), bounds_{0, static_cast<int64_t>(file_.bytes().size())} {}

  sherd::MappedFile file_;
  std::vector<int64_t> bounds_;
};

}  // namespace data
