#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "llm/dataset.h"
#include "llm/models/model_config.h"
#include "llm/options.h"
#include "llm/run_start.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// What a finished run leaves, beside what every step reported. The same on all ranks, but for
// `sample`, which may differ in what rounding decides, and `memory`.
struct TrainingResult {
  int64_t parameters = 0;
  double validation_loss = 0.0;       // over all validation samples
  std::optional<double> loss_before;  // the same of the weights of --init, before the first step
  std::string sample;                 // of a model of text
  std::optional<int64_t> stopped_at;  // the step after which the run saved and ended early
  std::vector<std::pair<std::string, int64_t>> memory;  // this rank's peak bytes by category
};

// The most rows of a micro-batch.
int64_t RowsOf(const Options& options, int ranks);

// Trains the model that `config` describes (see RunModelConfig) on `data`: builds, shards, loads,
// steps, validates, saves, generates.
//
// COLLECTIVE. Errors: kOutOfRange on all ranks when loss or gradients are no longer finite; those
// of LoadWeights, LoadState and StateSaver; sherd::Error of the library.
absl::StatusOr<TrainingResult> TrainModel(const Options& options, const ModelConfig& config,
                                          sherd::World& world, const Dataset& data,
                                          const TrainingHooks& hooks);

}  // namespace llm
