#pragma once

#include <cstdint>
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
#include "llm/run_start.h"
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

// Whether the options fit the data and so many ranks. Errors: kInvalidArgument for a --batch that
// is more than the pairs, or too small for the ranks' calls; naming the file of one held-out pair
// whose query is told from none with --symmetric.
absl::Status CheckRun(const Options& options, const PairSet& pairs, const PairSet& held_out,
                      int ranks);

// A number that follows from the pairs and the tokens of their texts: two runs that train on the
// same have the same.
uint64_t FingerprintOf(const Data& data);

// Trains the encoder to rank the document of each pair above those of all other pairs of its step,
// on all ranks, and measures it before, on the way and after.
//
// COLLECTIVE. Errors, on all ranks: kOutOfRange when loss or gradients are no longer finite;
//   kFailedPrecondition naming the state that is of other pairs, tokens or pooling; those of
//   LoadWeights, LoadState, StateSaver and SavePretrained; sherd::Error of the library. REQUIRES:
//   CheckRun has no error.
absl::StatusOr<TrainingResult> Train(const Options& options, const Encoder& encoder,
                                     sherd::World& world, const Data& pairs, const Data& held_out,
                                     const llm::TrainingHooks& hooks);

}  // namespace contrastive
