#pragma once

#include <memory>

#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// A group of one rank: collectives are copies within the process, or nothing when in place.
//
// Checks, counts and aborts as the groups of several ranks do, so that a program behaves the same
// at world size 1. Ownership: needs nothing to outlive it.
std::unique_ptr<ProcessGroup> MakeLocalGroup();

}  // namespace sherd
