#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "preference/pairs.h"
#include "sherd/runtime/comm/world.h"

namespace preference {

struct Options {
  std::string pairs;     // trained on
  std::string held_out;  // measured on
  std::string metrics;   // a JSON-lines file; empty: none
  int64_t dim = 64;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t seq = 160;
  bool checkpoint = true;
  bool f64 = false;
  int64_t warmup_steps = 400;  // of the first part: language modelling on the chosen answers
  int64_t steps = 200;         // of preference training
  int64_t batch = 16;          // pairs a step, over all ranks and micro-batches
  int64_t micro_batches = 1;
  double beta = 0.1;
  double lr = 1e-3;         // of preference training
  double warmup_lr = 3e-3;  // of the first part
  double clip = 1.0;
  uint64_t seed = 1;
  int64_t log_every = 20;
};

// What a model does on pairs, the same on all ranks.
struct Measure {
  double loss = 0.0;      // DPO's, mean over pairs
  double accuracy = 0.0;  // pairs whose margin is above 0; those at 0 count half
  double margin = 0.0;    // mean of beta (policy - reference)
};

struct Record {
  int64_t step = 0;  // 0: before preference training
  double loss = 0.0;
  double learning_rate = 0.0;
  double gradient_norm = 0.0;
  double accuracy = 0.0;  // of this step's pairs, before the update
  double margin = 0.0;
  std::optional<Measure> held_out;
};

// Trains a model on the chosen answers, keeps a frozen copy as the reference, and trains it further
// to prefer chosen answers. Calls `on_record` after each step of the second part, and before it.
// COLLECTIVE. Errors: throws sherd::Error.
void Train(const Options& options, sherd::World& world, std::span<const Pair> pairs,
           std::span<const Pair> held_out, const std::function<void(const Record&)>& on_record);

}  // namespace preference
