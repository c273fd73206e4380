#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"

namespace classify {

// What a run is told on its command line: --seq 24 by name, --encoder for a bool.
struct Options {
  bool encoder = false;  // bidirectional and first token, not causal and last token
  int64_t seq = 24;      // tokens of a row, padding included
  int64_t steps = 60;
  int64_t batch = 24;  // samples a step, over all ranks and micro-batches
  int64_t micro_batches = 1;
  int64_t seed = 1;
  double lr = 3e-3;
  double dropout = 0.1;      // of attention probabilities
  double penalty = 1e-3;     // of large logits
  int64_t labels_on = 0;     // the index of the CPU device labels are made on
  bool move_labels = false;  // allow another device than that of the logits
};

// Errors: kInvalidArgument in words for the user, for unknown flags, bad values, and a batch that
// cannot be cut for `ranks` ranks.
inline absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments, int ranks) {
  using O = Options;
  const std::map<std::string, std::variant<int64_t O::*, double O::*, bool O::*>> flags = {
      {"--encoder", &O::encoder},
      {"--seq", &O::seq},
      {"--steps", &O::steps},
      {"--batch", &O::batch},
      {"--seed", &O::seed},
      {"--micro_batches", &O::micro_batches},
      {"--lr", &O::lr},
      {"--dropout", &O::dropout},
      {"--penalty", &O::penalty},
      {"--labels_on", &O::labels_on},
      {"--move_labels", &O::move_labels}};
  Options o;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string word = arguments[i];
    const auto flag = flags.find(word);
    if (flag == flags.end()) return absl::InvalidArgumentError("unknown flag " + word);
    if (const auto* on = std::get_if<bool O::*>(&flag->second)) {
      o.** on = true;
      continue;
    }
    bool good = ++i < arguments.size();
    if (const auto* real = std::get_if<double O::*>(&flag->second); good && real != nullptr) {
      good = absl::SimpleAtod(arguments[i], &(o.**real)) && o.**real >= 0 && o.**real < 1;
    } else if (good) {
      int64_t& field = o.*std::get<int64_t O::*>(flag->second);
      good = absl::SimpleAtoi(arguments[i], &field) && field >= 0 && field < 1 << 30;
    }
    if (!good) return absl::InvalidArgumentError(word + " has no good value");
  }
  if (o.seq < 4 || o.micro_batches < 1 || o.batch < 1 || o.batch % (o.micro_batches * ranks) != 0) {
    return absl::InvalidArgumentError(
        "--seq is at least 4, --batch cut by ranks x --micro_batches");
  }
  return o;
}

}  // namespace classify
