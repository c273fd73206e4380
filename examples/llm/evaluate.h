#pragma once

#include <cstdint>
#include <span>

#include "llm/model.h"
#include "sherd/runtime/comm/process_group.h"

namespace llm {

// The mean loss of `model` over the windows of `text` that begin at `starts`, in nats per byte; the
// same on all ranks and, but for rounding, for any number of them.
//
// A sharded forward is a call of all ranks, so each makes as many as the one with most windows,
// `rows` windows at once. COLLECTIVE. REQUIRES: no Recording is on; at least one window.
double Evaluate(Llama& model, sherd::ProcessGroup& group, std::span<const uint8_t> text,
                std::span<const int64_t> starts, int64_t rows, const sherd::Device& device);

}  // namespace llm
