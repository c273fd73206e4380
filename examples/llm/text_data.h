#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/byte_tokenizer.h"

namespace llm {

// The tokens of this example are bytes.
inline constexpr int64_t kVocabulary = data::kByteVocabulary;

// A text cut into the part a model learns and the part it is measured on.
struct TextData {
  std::vector<uint8_t> train;
  std::vector<uint8_t> validation;
};

// Reads `files` whole and joins them in order; the last twentieth becomes the validation part, or
// one window where a twentieth is shorter.
//
// Errors: kNotFound, kPermissionDenied or kInvalidArgument naming the file that is missing,
//   unreadable, no regular file or empty; kInvalidArgument when the text holds fewer than one
//   window of `seq` + 1 bytes for each part, with both numbers.
absl::StatusOr<TextData> ReadText(const std::vector<std::string>& files, int64_t seq);

// The part of ReadText behind the files: cuts `text` into both parts.
absl::StatusOr<TextData> SplitText(std::vector<uint8_t> text, int64_t seq);

// Start positions of windows of `seq` + 1 bytes in a validation text: as many as fit side by side,
// or `most` of them spread evenly when that is fewer. A window's first byte is only read, never
// predicted. REQUIRES: bytes > seq >= 1, most >= 1.
std::vector<int64_t> ValidationWindows(int64_t bytes, int64_t seq, int64_t most);

// Writes the bytes of the window at `start` as token ids: `inputs` from its first byte on,
// `targets` the byte that follows each. REQUIRES: both spans have equal sizes, start + size <
// text.size().
void CopyWindow(std::span<const uint8_t> text, int64_t start, std::span<int64_t> inputs,
                std::span<int64_t> targets);

}  // namespace llm
