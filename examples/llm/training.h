#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/dataset.h"
#include "llm/options.h"
#include "llm/step_record.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// What a finished run leaves, beside what every step reported. The same on all ranks, but for
// `sample`, which may differ in what rounding decides, and `memory`.
struct TrainingResult {
  int64_t parameters = 0;
  double validation_loss = 0.0;                         // over all validation samples
  std::string sample;                                   // of a model of bytes
  std::vector<std::pair<std::string, int64_t>> memory;  // this rank's peak bytes by category
};

// The most rows of a micro-batch.
int64_t RowsOf(const Options& options, int ranks);

// Trains a model on `data` from initial values: builds, shards, steps, validates, generates.
//
// Calls `on_step` after each step; its error ends the run on all ranks. May be empty.
// COLLECTIVE. Errors: kOutOfRange on all ranks when loss or gradients are no longer finite;
// sherd::Error of the library.
absl::StatusOr<TrainingResult> TrainModel(
    const Options& options, sherd::World& world, const Dataset& data,
    const std::function<absl::Status(const StepRecord&)>& on_step);

}  // namespace llm
