#pragma once

#include <string>

#include "absl/status/status.h"
#include "sherd/shard/window.h"

namespace llm {

// Whether a step's loss and gradients are numbers: in f32 neither recovers by itself once it
// overflowed. Errors: kOutOfRange naming the step, with `what_helps`; the same on all ranks.
absl::Status CheckFinite(const sherd::StepResult& step, const std::string& what_helps);

}  // namespace llm
