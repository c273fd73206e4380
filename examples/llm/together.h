#pragma once

#include <cstdint>

#include "sherd/runtime/comm/process_group.h"

namespace llm {

// What ranks tell each other after a step.
struct Together {
  int64_t peak_bytes = 0;  // the largest of any rank
  bool stop = false;       // any rank was asked to
  bool written = false;    // all ranks have written what they save
};

// Puts together what each rank says. COLLECTIVE. Cost: one message of W + 2 integers.
Together TellAll(sherd::ProcessGroup& group, const Together& mine);

}  // namespace llm
