#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sherd/runtime/core/address_range.h"

namespace sherd {

// What memory is used for; every allocation is counted under one category.
enum class MemoryCategory : uint8_t {
  kParameterShard,  // the part of the parameters a rank owns
  kUnsharded,       // gathered parameters
  kGradientShard,   // reduced gradients a rank owns
  kGradient,        // full gradients on their way to the reduction
  kOptimizer,       // moments
  kActivation,      // op outputs and what backward keeps
  kStaging,         // receive buffers of collectives
  kWorkspace,       // scratchpads of kernels
  kBuffer,          // rope tables, token ids, everything that is neither of these
  kOffloaded,       // activations that wait in host memory
};
inline constexpr int kMemoryCategories = 10;

// "parameter shards", "activations", ...: as tables and errors name it.
std::string_view NameOf(MemoryCategory category);

// Bytes of one device. Sizes are what was asked for, rounded up to kAlignment.
struct MemoryStats {
  // What is held now, and the most that was held at once since ResetPeaks().
  struct Count {
    int64_t current_bytes = 0;
    int64_t peak_bytes = 0;
  };
  std::array<Count, kMemoryCategories> category{};
  // Its peak is that of the sum, not the sum of the peaks.
  Count total;
  int64_t cached_bytes = 0;  // in use by nobody but not yet given back: what Trim() is for
  int64_t allocations = 0;   // calls of Allocate so far

  const Count& operator[](MemoryCategory c) const { return category[static_cast<size_t>(c)]; }
  // A table, one line per category that was ever used.
  std::string ToString() const;
};

// Where a program that embeds us wants device memory to come from.
//
// Both are called under the allocator's lock: from any thread, one call at a time. Neither throws.
struct MemorySource {
  // Returns `bytes` of memory aligned to CachingAllocator::kAlignment, or null if there is none.
  std::function<void*(int64_t bytes)> allocate;
  // Takes back what it returned, with the same size.
  std::function<void(void* block, int64_t bytes)> free;
};

// A caching, counting allocator over one reserved range of addresses.
//
// Freed blocks merge with their neighbours and are handed out again, smallest fit first and lowest
// address among equals, so a step that repeats maps no new memory. Fresh memory costs fifty times a
// reuse on the machines we measured, hence no block goes back to the system before Trim().
// Threads: safe. Ownership: every block must be freed before the allocator is destroyed.
class CachingAllocator {
 public:
  // A cache line, and the widest vector register.
  static constexpr int64_t kAlignment = 64;

  // Reserves addresses of the host, not memory. Errors: kResourceExhausted if even that is refused.
  explicit CachingAllocator(int64_t reserve_bytes = int64_t{1} << 38);
  // Hands out the addresses of `range`, and has memory put behind them as far as they are used.
  explicit CachingAllocator(std::unique_ptr<AddressRange> range);
  // Counts, and asks `source` for each block: nothing is cached here. Fresh memory is slow, so a
  // source should keep what comes back. Errors: kInvalidArgument if one of the two is empty.
  explicit CachingAllocator(MemorySource source);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Returns `bytes` of uninitialised memory aligned to kAlignment; null for 0 bytes.
  // Errors: kResourceExhausted with the request and the holders by category; kInternal if a source
  // returns memory that is not aligned.
  void* Allocate(int64_t bytes, MemoryCategory category);
  // Takes back what Allocate returned, with the same size and category; nothing for null.
  // REQUIRES: the block is in use by nobody, also not by a job of a stream.
  void Free(void* block, int64_t bytes, MemoryCategory category);

  // A consistent copy of all figures.
  MemoryStats stats() const;
  // Makes every peak the current value, to measure a phase.
  void ResetPeaks();
  // Gives cached memory back to the system, by whole pages; blocks in use stay where they are.
  // A device finishes its work first.
  void Trim();

 private:
  struct FreeRange {
    int64_t size = 0;
    int64_t cached = 0;  // of these, at most so many hold memory; exact unless Trim came between
  };
  using FreeRanges = std::pmr::map<int64_t, FreeRange>;  // by offset

  // Adds a free range, merged with its neighbours: those that end where it begins, and begin where
  // it ends.
  void Insert(int64_t offset, FreeRange range);
  // Takes it out of both tables.
  FreeRange Remove(FreeRanges::iterator range);
  // A block of exactly `size`, or null.
  void* Take(int64_t size);
  // Takes the offset of a block of exactly `size`, or returns -1.
  int64_t TakeFit(int64_t size);
  // A block with memory behind it, or -1. What lies unused is given back first where that helps.
  int64_t TakeCommitted(int64_t size);
  void TrimLocked();

  const MemorySource source_;  // empty: the range
  const std::unique_ptr<AddressRange> range_;
  int64_t top_ = 0;  // everything above was never handed out, or was given back by Trim
  mutable std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource nodes_;  // a step that repeats makes no heap allocation
  FreeRanges free_by_offset_{&nodes_};
  std::pmr::set<std::pair<int64_t, int64_t>> free_by_size_{&nodes_};  // (size, offset)
  std::map<int64_t, std::vector<int64_t>> small_;  // exact sizes up to a page, never merged
  int64_t cached_ = 0;
  MemoryStats stats_;
};

}  // namespace sherd
