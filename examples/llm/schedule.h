#pragma once

#include <cstdint>

namespace llm {

// The learning rate over a run: a linear rise, then half a cosine down.
struct Schedule {
  double highest = 1e-3;
  double lowest = 1e-4;  // of the last step
  int64_t warmup = 0;    // steps of the rise; the last of them has the highest rate
  int64_t steps = 1;

  // Of step 1 to `steps`.
  // Source: Loshchilov and Hutter 2017, "SGDR".
  double operator()(int64_t step) const;
};

}  // namespace llm
