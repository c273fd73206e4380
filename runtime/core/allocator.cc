#include "sherd/runtime/core/allocator.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
      "parameter shards", "unsharded parameters", "gradient shards", "gradients",
      "optimizer state",  "activations",          "staging",         "workspace",
      "buffers",          "offloaded activations"};
  return kNames[static_cast<int>(category)];
}

std::string MemoryStats::ToString() const {
  std::string text =
      absl::StrFormat("%-22s %14s %14s\n", "category", "current bytes", "peak bytes");
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

CachingAllocator::CachingAllocator(int64_t reserve_bytes)
    : CachingAllocator(MakeHostRange(reserve_bytes)) {}

CachingAllocator::CachingAllocator(std::unique_ptr<AddressRange> range)
    : range_(std::move(range)) {}

CachingAllocator::CachingAllocator(MemorySource source) : source_(std::move(source)) {
  if (!source_.allocate || !source_.free) {
    ThrowInvalidArgument("a source of memory needs a function to allocate and one to free");
  }
}

void* CachingAllocator::Allocate(int64_t bytes, MemoryCategory category) {
  if (bytes == 0) return nullptr;
  const int64_t counted = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  void* const block = Take(counted);
  if (block == nullptr) {
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
  return block;
}

void* CachingAllocator::Take(int64_t size) {
  if (!source_.allocate) {
    const int64_t offset = TakeCommitted(size);
    return offset < 0 ? nullptr : range_->base() + offset;
  }
  void* const block = source_.allocate(size);
  SHERD_CHECK(reinterpret_cast<uintptr_t>(block) % kAlignment == 0,
              absl::StrCat("a source of memory returned a block that is not aligned to ",
                           kAlignment, " bytes"));
  return block;
}

void CachingAllocator::Free(void* block, int64_t bytes, MemoryCategory category) {
  if (block == nullptr) return;
  const int64_t counted = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.category[static_cast<size_t>(category)].current_bytes -= counted;
  stats_.total.current_bytes -= counted;
  if (source_.free) return source_.free(block, counted);
  const int64_t offset = static_cast<char*>(block) - range_->base();
  if (counted < kPage) {
    small_[counted].push_back(offset);
    cached_ += counted;
  } else {
    Insert(offset, {counted, counted});
  }
}

int64_t CachingAllocator::TakeCommitted(int64_t size) {
  for (const bool again : {false, true}) {
    const int64_t offset = TakeFit(size);
    if (offset < 0) return -1;
    if (range_->Commit(offset, offset + size)) return offset;
    Insert(offset, {size, 0});
    if (!again) TrimLocked();
  }
  return -1;
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
  auto fit = free_by_size_.lower_bound({size, 0});
  if (fit != free_by_size_.end()) {
    const int64_t offset = fit->second;
    const FreeRange range = Remove(free_by_offset_.find(offset));
    if (const int64_t rest = range.size - size; rest > 0) {
      Insert(offset + size, {rest, std::min(range.cached, rest)});
    }
    return offset;
  }
  // A free range that ends at the top grows instead of leaving a hole behind.
  int64_t offset = top_;
  auto last = free_by_offset_.empty() ? free_by_offset_.end() : std::prev(free_by_offset_.end());
  if (last != free_by_offset_.end() && last->first + last->second.size == top_)
    offset = last->first;
  if (size > range_->bytes() - offset) return -1;
  if (offset != top_) Remove(last);
  top_ = offset + size;
  return offset;
}

void CachingAllocator::Insert(int64_t offset, FreeRange range) {
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && offset + range.size == next->first) {
    auto following = std::next(next);
    const FreeRange upper = Remove(next);
    range = {range.size + upper.size, range.cached + upper.cached};
    next = following;
  }
  if (next != free_by_offset_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second.size == offset) {
      offset = previous->first;
      const FreeRange lower = Remove(previous);
      range = {range.size + lower.size, range.cached + lower.cached};
    }
  }
  free_by_offset_.emplace(offset, range);
  free_by_size_.emplace(range.size, offset);
  cached_ += range.cached;
}

CachingAllocator::FreeRange CachingAllocator::Remove(FreeRanges::iterator it) {
  const FreeRange range = it->second;
  free_by_size_.erase({range.size, it->first});
  free_by_offset_.erase(it);
  cached_ -= range.cached;
  return range;
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
  TrimLocked();
}

void CachingAllocator::TrimLocked() {
  if (range_ == nullptr) return;
  const int64_t page = range_->page();
  for (auto& [size, offsets] : small_) {
    for (int64_t offset : offsets) Insert(offset, {size, size});
    cached_ -= size * static_cast<int64_t>(offsets.size());
  }
  small_.clear();
  if (!free_by_offset_.empty()) {
    auto last = std::prev(free_by_offset_.end());
    if (const auto [offset, range] = *last; offset + range.size == top_) {
      const int64_t begin = RoundUp(offset, page);
      const int64_t end = RoundUp(top_, page);
      if (end > begin) range_->Decommit(begin, end);
      Remove(last);
      top_ = offset;
    }
  }
  for (auto& [offset, range] : free_by_offset_) {
    const int64_t begin = RoundUp(offset, page);
    const int64_t end = (offset + range.size) / page * page;
    if (end <= begin) continue;
    range_->Decommit(begin, end);
    const int64_t left = std::min(range.cached, range.size - (end - begin));
    cached_ -= range.cached - left;
    range.cached = left;
  }
}

}  // namespace sherd
