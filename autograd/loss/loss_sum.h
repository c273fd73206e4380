#pragma once

#include <cstdint>

#include "sherd/autograd/call.h"
#include "sherd/autograd/variable.h"

namespace sherd {

// A loss before anybody divides: the sum over items, and how many there were.
//
// Only the owner of scaling (a window) turns it into a mean, once, over the items of all
// micro-batches of all ranks; that is why it is not a plain scalar.
struct LossSum {
  Variable value;     // [1], f64
  int64_t items = 0;  // labelled tokens, samples, ...: what the loss's Count says
};

// Lets checkpointed functions return a loss.
inline void VisitVariables(LossSum& loss, const VariableVisitor& visit) { visit(loss.value); }

}  // namespace sherd
