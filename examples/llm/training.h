#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/options.h"
#include "llm/step_record.h"
#include "llm/text_data.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// What a finished run leaves, beside what every step reported. The same on all ranks, but for
// `sample`, which may differ in what rounding decides, and `memory`.
struct TrainingResult {
  int64_t parameters = 0;
  double validation_loss = 0.0;     // over all windows of the validation text
  std::vector<int64_t> validation;  // where those windows begin
  std::string sample;
  std::vector<std::pair<std::string, int64_t>> memory;  // this rank's peak bytes by category
};

// Trains a model on `text` from initial values: builds, shards, steps, validates, generates.
//
// Calls `on_step` after each step; its error ends the run on all ranks. May be empty.
// COLLECTIVE. Errors: kOutOfRange on all ranks when loss or gradients are no longer finite;
// sherd::Error of the library.
absl::StatusOr<TrainingResult> TrainModel(
    const Options& options, sherd::World& world, const TextData& text,
    const std::function<absl::Status(const StepRecord&)>& on_step);

}  // namespace llm
