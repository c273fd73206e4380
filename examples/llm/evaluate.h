#pragma once

#include <cstdint>
#include <span>

#include "data/loader.h"
#include "data/samples.h"
#include "llm/models/text_model.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// What a model reads of a batch.
inline TextInput InputOf(const data::Batch& batch) {
  return {.tokens = batch.tokens, .cu_seqlens = batch.cu_seqlens, .positions = batch.positions};
}

// The mean loss of `model` over the labels of some samples, in nats; the same on all ranks and, but
// for rounding, for any number of them. `rows` samples at once, which go round the ranks.
//
// COLLECTIVE. REQUIRES: no Recording is on.
double Evaluate(TextModel& model, const sherd::World& world, const data::Samples& samples,
                std::span<const int64_t> which, int64_t rows);

}  // namespace llm
