#include "sherd/runtime/core/allocator.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

constexpr MemoryCategory kKind = MemoryCategory::kActivation;
constexpr int64_t kPage = 4096;

char* Get(CachingAllocator& allocator, int64_t bytes, MemoryCategory category = kKind) {
  return static_cast<char*>(allocator.Allocate(bytes, category));
}

TEST(AllocatorTest, BlocksAreAlignedAndApart) {
  CachingAllocator allocator;
  std::map<char*, int64_t> blocks;
  for (int64_t bytes : {1, 63, 64, 65, 1000, 4096, 5000, 100000}) {
    char* block = Get(allocator, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % CachingAllocator::kAlignment, 0u);
    std::memset(block, static_cast<int>(bytes % 100), static_cast<size_t>(bytes));
    blocks[block] = bytes;
  }
  char* end = nullptr;
  for (const auto& [block, bytes] : blocks) {
    EXPECT_GE(block, end);
    EXPECT_EQ(block[0], static_cast<char>(bytes % 100));
    EXPECT_EQ(block[bytes - 1], static_cast<char>(bytes % 100));
    end = block + bytes;
  }
  for (const auto& [block, bytes] : blocks) allocator.Free(block, bytes, kKind);
}

TEST(AllocatorTest, NoBytesAreNoBlock) {
  CachingAllocator allocator;
  EXPECT_EQ(allocator.Allocate(0, kKind), nullptr);
  allocator.Free(nullptr, 0, kKind);
  EXPECT_EQ(allocator.stats().allocations, 0);
}

TEST(AllocatorTest, FreedBlockIsHandedOutAgain) {
  CachingAllocator allocator;
  for (int64_t bytes : {int64_t{128}, 4 * kPage}) {
    char* first = Get(allocator, bytes);
    char* fence = Get(allocator, bytes);
    allocator.Free(first, bytes, kKind);
    EXPECT_EQ(Get(allocator, bytes), first);
    allocator.Free(first, bytes, kKind);
    allocator.Free(fence, bytes, kKind);
  }
}

TEST(AllocatorTest, RepeatedStepMapsNothingNew) {
  CachingAllocator allocator;
  const auto step = [&] {
    std::vector<std::pair<char*, int64_t>> blocks;
    for (int64_t i = 1; i <= 20; ++i) blocks.emplace_back(Get(allocator, i * 3000), i * 3000);
    for (const auto& [block, bytes] : blocks) allocator.Free(block, bytes, kKind);
    return allocator.stats().cached_bytes;
  };
  const int64_t cached = step();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step(), cached);
}

TEST(AllocatorTest, NeighboursMergeInEveryOrder) {
  std::vector<int> order = {0, 1, 2};
  do {
    CachingAllocator allocator;
    char* blocks[3];
    for (char*& block : blocks) block = Get(allocator, 2 * kPage);
    char* fence = Get(allocator, kPage);
    for (int i : order) allocator.Free(blocks[i], 2 * kPage, kKind);
    EXPECT_EQ(Get(allocator, 6 * kPage), blocks[0]);
    allocator.Free(blocks[0], 6 * kPage, kKind);
    allocator.Free(fence, kPage, kKind);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(AllocatorTest, SmallestFitFirstAndLowestAddressAmongEquals) {
  CachingAllocator allocator;
  const int64_t sizes[] = {8 * kPage, 4 * kPage, 6 * kPage, 4 * kPage};
  char* blocks[4];
  for (int i = 0; i < 4; ++i) {
    blocks[i] = Get(allocator, sizes[i]);
    Get(allocator, kPage);  // keeps its neighbours apart
  }
  for (int i : {3, 2, 1, 0}) allocator.Free(blocks[i], sizes[i], kKind);
  EXPECT_EQ(Get(allocator, 4 * kPage), blocks[1]);
  EXPECT_EQ(Get(allocator, 4 * kPage), blocks[3]);
  EXPECT_EQ(Get(allocator, 4 * kPage), blocks[2]);
  EXPECT_EQ(Get(allocator, 2 * kPage), blocks[2] + 4 * kPage);  // what was left of that one
  EXPECT_EQ(Get(allocator, 4 * kPage), blocks[0]);
}

TEST(AllocatorTest, FreeRangeAtTheTopGrows) {
  CachingAllocator allocator;
  char* block = Get(allocator, 2 * kPage);
  allocator.Free(block, 2 * kPage, kKind);
  EXPECT_EQ(Get(allocator, 5 * kPage), block);
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
}

TEST(AllocatorTest, CountsAndPeaksByCategory) {
  CachingAllocator allocator;
  char* a = Get(allocator, 100, MemoryCategory::kParameterShard);  // counts as 128
  char* b = Get(allocator, 1000, MemoryCategory::kGradient);       // 1024
  allocator.Free(b, 1000, MemoryCategory::kGradient);
  char* c = Get(allocator, 64, MemoryCategory::kGradient);
  MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats[MemoryCategory::kParameterShard].current_bytes, 128);
  EXPECT_EQ(stats[MemoryCategory::kGradient].current_bytes, 64);
  EXPECT_EQ(stats[MemoryCategory::kGradient].peak_bytes, 1024);
  EXPECT_EQ(stats[MemoryCategory::kOptimizer].peak_bytes, 0);
  EXPECT_EQ(stats.total.current_bytes, 192);
  EXPECT_EQ(stats.total.peak_bytes, 128 + 1024);
  EXPECT_EQ(stats.allocations, 3);
  allocator.ResetPeaks();
  stats = allocator.stats();
  EXPECT_EQ(stats[MemoryCategory::kGradient].peak_bytes, 64);
  EXPECT_EQ(stats.total.peak_bytes, 192);
  allocator.Free(a, 100, MemoryCategory::kParameterShard);
  allocator.Free(c, 64, MemoryCategory::kGradient);
  EXPECT_EQ(allocator.stats().total.current_bytes, 0);
}

TEST(AllocatorTest, TableShowsUsedCategoriesOnly) {
  CachingAllocator allocator;
  char* a = Get(allocator, 100, MemoryCategory::kOptimizer);
  const std::string table = allocator.stats().ToString();
  EXPECT_NE(table.find("optimizer state"), std::string::npos) << table;
  EXPECT_NE(table.find("128"), std::string::npos) << table;
  EXPECT_EQ(table.find("gradients"), std::string::npos) << table;
  allocator.Free(a, 100, MemoryCategory::kOptimizer);
}

int64_t ResidentPages(char* begin, int64_t bytes) {
  std::vector<unsigned char> pages(static_cast<size_t>(bytes / kPage));
  if (mincore(begin, static_cast<size_t>(bytes), pages.data()) != 0) return -1;
  int64_t count = 0;
  for (unsigned char page : pages) count += page & 1;
  return count;
}

TEST(AllocatorTest, TrimGivesCachedMemoryBackAndKeepsBlocksInUse) {
  CachingAllocator allocator;
  const int64_t bytes = 16 * kPage;
  char* low = Get(allocator, bytes);
  char* kept = Get(allocator, bytes);
  char* high = Get(allocator, bytes);
  std::memset(low, 1, 3 * static_cast<size_t>(bytes));
  allocator.Free(low, bytes, kKind);
  allocator.Free(high, bytes, kKind);
  EXPECT_EQ(allocator.stats().cached_bytes, 2 * bytes);
  EXPECT_EQ(ResidentPages(low, bytes), 16);
  allocator.Trim();
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
  EXPECT_EQ(ResidentPages(low, bytes), 0);
  EXPECT_EQ(ResidentPages(high, bytes), 0);
  for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(kept[i], 1) << i;
  EXPECT_EQ(Get(allocator, bytes), low);
  EXPECT_EQ(Get(allocator, bytes), high);
  for (char* block : {low, kept, high}) allocator.Free(block, bytes, kKind);
  EXPECT_EQ(allocator.stats().cached_bytes, 3 * bytes);
}

TEST(AllocatorTest, TrimMergesSmallBlocks) {
  CachingAllocator allocator;
  std::vector<char*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(Get(allocator, 1024));
  char* fence = Get(allocator, kPage);
  for (char* block : blocks) allocator.Free(block, 1024, kKind);
  allocator.Trim();
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
  EXPECT_EQ(Get(allocator, 64 * 1024), blocks[0]);
  allocator.Free(fence, kPage, kKind);
}

TEST(AllocatorTest, SplitOfATrimmedRangeIsNotCachedMemory) {
  CachingAllocator allocator;
  char* block = Get(allocator, 8 * kPage);
  char* fence = Get(allocator, kPage);
  allocator.Free(block, 8 * kPage, kKind);
  allocator.Trim();
  EXPECT_EQ(Get(allocator, 2 * kPage), block);
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
  allocator.Free(block, 2 * kPage, kKind);
  EXPECT_EQ(allocator.stats().cached_bytes, 2 * kPage);
  allocator.Free(fence, kPage, kKind);
}

TEST(AllocatorTest, OutOfMemoryNamesRequestAndHolders) {
  const int64_t reserve = int64_t{1} << 30;
  CachingAllocator allocator(reserve);
  char* held = Get(allocator, 1000, MemoryCategory::kOptimizer);
  for (int64_t bytes : {reserve, std::numeric_limits<int64_t>::max() / 2}) {
    try {
      allocator.Allocate(bytes, MemoryCategory::kUnsharded);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_NE(error.message().find("asked for " + std::to_string(bytes) +
                                     " bytes for unsharded parameters"),
                std::string::npos)
          << error.message();
      EXPECT_NE(error.message().find("optimizer state"), std::string::npos) << error.message();
    }
  }
  char* rest = Get(allocator, reserve - 1024);  // what is left can still be had
  allocator.Free(rest, reserve - 1024, kKind);
  allocator.Free(held, 1000, MemoryCategory::kOptimizer);
}

// Any sequence of calls: blocks never overlap, and the counts agree with a plain model.
TEST(AllocatorTest, RandomSequencesKeepTheirPromises) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    CachingAllocator allocator;
    std::map<char*, int64_t> live;
    int64_t in_use = 0;
    int64_t touched = 0;
    char* lowest = nullptr;
    for (int i = 0; i < 500; ++i) {
      if (live.empty() || random() % 100 < 55) {
        const int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 2 ? 200 : 40000));
        char* block = Get(allocator, bytes);
        if (lowest == nullptr) lowest = block;
        const auto next = live.lower_bound(block);
        if (next != live.end()) {
          ASSERT_LE(block + bytes, next->first);
        }
        if (next != live.begin()) {
          ASSERT_LE(std::prev(next)->first + std::prev(next)->second, block);
        }
        live[block] = bytes;
        in_use += (bytes + 63) / 64 * 64;
        touched = std::max<int64_t>(touched, block - lowest + (bytes + 63) / 64 * 64);
      } else {
        auto it = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
        allocator.Free(it->first, it->second, kKind);
        in_use -= (it->second + 63) / 64 * 64;
        live.erase(it);
      }
      const MemoryStats stats = allocator.stats();
      ASSERT_EQ(stats.total.current_bytes, in_use);
      ASSERT_EQ(stats.cached_bytes, touched - in_use);
    }
    for (const auto& [block, bytes] : live) allocator.Free(block, bytes, kKind);
    allocator.Trim();
    EXPECT_EQ(allocator.stats().cached_bytes, 0);
  }
}

TEST(AllocatorTest, ThreadsShareIt) {
  CachingAllocator allocator;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&allocator, t] {
      for (int64_t i = 1; i < 500; ++i) {
        const int64_t bytes = i * 37 % 9000 + 1;
        char* block = Get(allocator, bytes);
        std::memset(block, t, static_cast<size_t>(bytes));
        EXPECT_EQ(block[bytes - 1], t);
        allocator.Free(block, bytes, kKind);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.stats().total.current_bytes, 0);
  EXPECT_EQ(allocator.stats().allocations, 4 * 499);
}

}  // namespace
}  // namespace sherd
