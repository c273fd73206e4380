#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace llm {

// What one training step reports: to the screen, to metrics.jsonl and to the plots.
//
// Figures are those of the whole run, all ranks together, except `peak_bytes`.
struct StepRecord {
  int64_t step = 0;   // counted from 1
  double loss = 0.0;  // mean over the step's items, tokens say, in nats, before the update
  std::optional<double> z_loss;           // mean over the same items, without its weight
  std::optional<double> validation_loss;  // after the update, where it was measured
  // What else was measured then, by name, such as {"recall@1", 0.5}; from 0 to 1.
  std::map<std::string, double> measures = {};
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t samples = 0;        // of this step: its effective batch
  int64_t micro_batches = 0;  // that they were cut into, over all ranks
  int64_t tokens = 0;         // trained on so far, this step included
  double tokens_per_second = 0.0;
  int64_t peak_bytes = 0;  // the largest so far of any rank
  double seconds = 0.0;    // since training began
};

}  // namespace llm
