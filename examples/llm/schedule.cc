#include "llm/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llm {

double Schedule::operator()(int64_t step) const {
  if (step <= warmup) return highest * static_cast<double>(step) / static_cast<double>(warmup);
  const int64_t first = std::max<int64_t>(warmup, 1);  // the step of the highest rate
  if (first >= steps) return highest;
  const double done = static_cast<double>(step - first) / static_cast<double>(steps - first);
  return lowest + 0.5 * (highest - lowest) * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace llm
