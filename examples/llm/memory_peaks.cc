#include "llm/memory_peaks.h"

#include "sherd/runtime/core/allocator.h"

namespace llm {

std::vector<std::pair<std::string, int64_t>> PeaksByCategory(const sherd::Device& device) {
  const sherd::MemoryStats stats = device.allocator().stats();
  std::vector<std::pair<std::string, int64_t>> peaks;
  for (int i = 0; i < sherd::kMemoryCategories; ++i) {
    const auto category = static_cast<sherd::MemoryCategory>(i);
    const int64_t bytes = stats[category].peak_bytes;
    if (bytes > 0) peaks.emplace_back(sherd::NameOf(category), bytes);
  }
  return peaks;
}

}  // namespace llm
