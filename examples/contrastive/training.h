#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "contrastive/encoder.h"
#include "contrastive/options.h"
#include "contrastive/pairs.h"
#include "contrastive/retrieval.h"
#include "llm/step_record.h"
#include "sherd/runtime/comm/world.h"

namespace contrastive {

// Pairs with the tokens of their texts.
struct Data {
  PairSet set;
  std::vector<std::vector<int64_t>> tokens;  // of each text
};

// What held-out pairs say of an encoder.
struct HeldOut {
  double loss = 0.0;  // of ranking all of them as one batch, in nats a pair
  Retrieval retrieval;
};

// What a finished run leaves. The same on all ranks, but for `memory`.
struct TrainingResult {
  int64_t parameters = 0;
  std::optional<HeldOut> before;  // of a run that began at its first step
  HeldOut after;
  std::optional<int64_t> stopped_at;  // the step after which the run saved and ended early
  std::vector<std::pair<std::string, int64_t>> memory;  // this rank's peak bytes by category
};

// What a run asks of its surroundings; see llm::TrainingHooks.
struct TrainingHooks {
  std::function<absl::Status(const llm::StepRecord&)> on_step;
  std::function<bool()> stop_asked;
  llm::StepRecord last;
  std::string state;
};

// Trains the encoder to rank the document of each pair above those of all other pairs of its step,
// on all ranks, and measures it before, on the way and after.
//
// COLLECTIVE. Errors: kInvalidArgument for a --batch that is more than the pairs, or too small for
//   the ranks' calls; kOutOfRange when loss or gradients are no longer finite; those of
//   LoadWeights, LoadState, StateSaver and SavePretrained; sherd::Error of the library.
absl::StatusOr<TrainingResult> Train(const Options& options, const Encoder& encoder,
                                     sherd::World& world, const Data& pairs, const Data& held_out,
                                     const TrainingHooks& hooks);

}  // namespace contrastive
