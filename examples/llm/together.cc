#include "llm/together.h"

#include <algorithm>
#include <vector>

namespace llm {

// Reductions only sum, so every rank has a slot for its peak.
Together TellAll(sherd::ProcessGroup& group, const Together& mine) {
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<int64_t> slots(ranks + 2, 0);
  slots[static_cast<size_t>(group.rank())] = mine.peak_bytes;
  slots[ranks] = mine.stop ? 1 : 0;
  slots[ranks + 1] = mine.written ? 1 : 0;
  group.AllReduce(slots.data(), static_cast<int64_t>(slots.size()), sherd::DType::kI64,
                  {.op = "after a step"});
  return {.peak_bytes = *std::max_element(slots.begin(), slots.end() - 2),
          .stop = slots[ranks] > 0,
          .written = slots[ranks + 1] == group.size()};
}

}  // namespace llm
