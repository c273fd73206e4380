#pragma once

#include <cstdint>
#include <span>

#include "llm/model.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// The mean loss of `model` over the windows of `text` that begin at `starts`, in nats per byte; the
// same on all ranks and, but for rounding, for any number of them. `rows` windows at once, which go
// round the ranks.
//
// COLLECTIVE. REQUIRES: no Recording is on.
double Evaluate(Llama& model, const sherd::World& world, std::span<const uint8_t> text,
                std::span<const int64_t> starts, int64_t rows);

}  // namespace llm
