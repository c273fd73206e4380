#pragma once

#include <cstdint>
#include <span>

#include "data/samples.h"
#include "llm/model.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// The mean loss of `model` over the labels of some samples, in nats; the same on all ranks and, but
// for rounding, for any number of them. `rows` samples at once, which go round the ranks.
//
// COLLECTIVE. REQUIRES: no Recording is on.
double Evaluate(Llama& model, const sherd::World& world, const data::Samples& samples,
                std::span<const int64_t> which, int64_t rows);

}  // namespace llm
