#include "sherd/runtime/core/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

constexpr int64_t kPage = 4096;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::string_view NameOf(MemoryCategory category) {
  constexpr std::string_view kNames[kMemoryCategories] = {
      "parameter shards", "unsharded parameters", "gradient shards", "gradients", "optimizer state",
      "activations",      "staging",              "workspace",       "buffers"};
  return kNames[static_cast<int>(category)];
}

std::string MemoryStats::ToString() const {
  std::string text = absl::StrFormat("%-22s %14s %14s\n", "category", "current bytes", "peak bytes");
  for (int i = 0; i < kMemoryCategories; ++i) {
    const Count& count = category[static_cast<size_t>(i)];
    if (count.peak_bytes == 0) continue;
    const std::string name(NameOf(static_cast<MemoryCategory>(i)));
    absl::StrAppendFormat(&text, "%-22s %14d %14d\n", name, count.current_bytes, count.peak_bytes);
  }
  absl::StrAppendFormat(&text, "%-22s %14d %14d\n", "total", total.current_bytes, total.peak_bytes);
  absl::StrAppendFormat(&text, "%-22s %14d\n", "cached", cached_bytes);
  return text;
}

CachingAllocator::CachingAllocator(int64_t reserve_bytes) {
  // A smaller range serves as well where the system limits addresses (ulimit -v, valgrind).
  for (reserve_ = reserve_bytes; reserve_ >= (int64_t{1} << 30); reserve_ /= 2) {
    void* base = mmap(nullptr, static_cast<size_t>(reserve_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) {
      base_ = static_cast<char*>(base);
      return;
    }
  }
  ThrowError(Error(absl::StatusCode::kResourceExhausted, "cannot reserve a range of addresses"));
}

CachingAllocator::~CachingAllocator() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(reserve_));
}

void* CachingAllocator::Allocate(int64_t bytes, MemoryCategory category) {
  if (bytes == 0) return nullptr;
  const int64_t counted = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t offset = TakeFit(counted);
  if (offset < 0) {
    ThrowError(Error(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("out of memory: asked for ", bytes, " bytes for ",
                                  std::string(NameOf(category)), "\n", stats_.ToString())));
  }
  auto count = [&](MemoryStats::Count& c) {
    c.current_bytes += counted;
    c.peak_bytes = std::max(c.peak_bytes, c.current_bytes);
  };
  count(stats_.category[static_cast<size_t>(category)]);
  count(stats_.total);
  ++stats_.allocations;
  return base_ + offset;
}

void CachingAllocator::Free(void* block, int64_t bytes, MemoryCategory category) {
  if (block == nullptr) return;
  const int64_t counted = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.category[static_cast<size_t>(category)].current_bytes -= counted;
  stats_.total.current_bytes -= counted;
  cached_ += counted;
  const int64_t offset = static_cast<char*>(block) - base_;
  if (counted < kPage) {
    small_[counted].push_back(offset);
  } else {
    Insert(offset, counted);
  }
}

int64_t CachingAllocator::TakeFit(int64_t size) {
  if (size < kPage) {
    if (auto it = small_.find(size); it != small_.end() && !it->second.empty()) {
      const int64_t offset = it->second.back();
      it->second.pop_back();
      cached_ -= size;
      return offset;
    }
  }
  auto it = free_by_size_.lower_bound({size, 0});
  if (it != free_by_size_.end()) {
    const auto [found, offset] = *it;
    free_by_size_.erase(it);
    free_by_offset_.erase(offset);
    cached_ -= found;
    if (found > size) {
      free_by_offset_.emplace(offset + size, found - size);
      free_by_size_.emplace(found - size, offset + size);
      cached_ += found - size;
    }
    return offset;
  }
  // A free block that ends at the top grows instead of leaving a hole behind.
  int64_t offset = top_;
  if (!free_by_offset_.empty()) {
    auto last = std::prev(free_by_offset_.end());
    if (last->first + last->second == top_) {
      offset = last->first;
      if (offset + size > reserve_) return -1;
      cached_ -= last->second;
      free_by_size_.erase({last->second, last->first});
      free_by_offset_.erase(last);
      top_ = offset + size;
      return offset;
    }
  }
  if (offset + size > reserve_) return -1;
  top_ += size;
  return offset;
}

void CachingAllocator::Insert(int64_t offset, int64_t size) {
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && offset + size == next->first) {
    size += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_by_offset_.erase(next);
  }
  if (next != free_by_offset_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      free_by_size_.erase({previous->second, previous->first});
      free_by_offset_.erase(previous);
    }
  }
  free_by_offset_.emplace(offset, size);
  free_by_size_.emplace(size, offset);
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  MemoryStats stats = stats_;
  stats.cached_bytes = cached_;
  return stats;
}

void CachingAllocator::ResetPeaks() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (MemoryStats::Count& count : stats_.category) count.peak_bytes = count.current_bytes;
  stats_.total.peak_bytes = stats_.total.current_bytes;
}

void CachingAllocator::Trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [offset, size] : free_by_offset_) {
    const int64_t begin = RoundUp(offset, kPage);
    const int64_t end = (offset + size) / kPage * kPage;
    if (end > begin) madvise(base_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
  }
  // Pages of the lowest blocks come back on their next use; the highest range is forgotten.
  if (!free_by_offset_.empty()) {
    auto last = std::prev(free_by_offset_.end());
    if (last->first + last->second == top_) {
      top_ = last->first;
      cached_ -= last->second;
      free_by_size_.erase({last->second, last->first});
      free_by_offset_.erase(last);
    }
  }
}

}  // namespace sherd
