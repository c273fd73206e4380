#pragma once

#include <cstdint>

namespace sherd::testing {

// Calls of operator new in this program so far. Linking this replaces operator new.
int64_t HeapAllocations();

}  // namespace sherd::testing
