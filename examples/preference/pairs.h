#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/tensor.h"

namespace preference {

// A prompt with two answers, as bytes.
struct Pair {
  std::string prompt;
  std::string chosen;
  std::string rejected;
};

// Reads a JSON-lines file of {"prompt", "chosen", "rejected"}.
//
// Errors: those of data::ReadJsonLines; kInvalidArgument naming file and line if a key is missing,
// a
//   prompt or an answer is empty, both answers are the same, or prompt and answer have more than
//   `seq` + 1 bytes, with both numbers. Nothing is cut off.
absl::StatusOr<std::vector<Pair>> ReadPairs(const std::string& file, int64_t seq);

// One answer to each prompt of a batch. Shapes: [B, T] i64, T that of the longest row; what is
// behind a shorter row is token 0 without a label. Labels are the tokens after each, those of the
// prompt ignored.
struct Answers {
  sherd::Tensor tokens;
  sherd::Tensor labels;
};

// Pairs that go through the models together.
struct Batch {
  Answers chosen;
  Answers rejected;
  std::vector<int64_t> samples;  // [B]: each pair's global number in the run

  int64_t pairs() const { return static_cast<int64_t>(samples.size()); }
};

Batch MakeBatch(std::span<const Pair> pairs, std::span<const int64_t> which,
                const sherd::Device& device);

}  // namespace preference
