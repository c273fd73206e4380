#pragma once

#include <cstdint>
#include <functional>

#include "emulated/vector_types.h"

namespace emulated {

struct Grid {
  dim3 grid;
  dim3 block;
  size_t dynamic_bytes = 0;
  uint64_t shuffle_seed = 0;  // see Options
  std::function<void()> thread;
};

// Runs the blocks of `grid` one after another on the calling thread, the threads of a block as
// fibers: each runs until it meets a barrier or ends. Ends the process, with what waits where, when
// threads wait for a barrier that the others cannot reach any more.
void RunGrid(const Grid& grid);

}  // namespace emulated
