// The allocator over a range whose memory comes and goes by large pages, as a device's does.

#include "sherd/runtime/core/address_range.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/allocator.h"

namespace sherd {
namespace {

constexpr MemoryCategory kKind = MemoryCategory::kActivation;
constexpr int64_t kPage = int64_t{1} << 16;
constexpr int64_t kPages = 64;

// What a PagedRange has done; outlives it.
struct Pages {
  std::set<int64_t> mapped;
  int64_t most = kPages;  // there is no memory for more
  int maps = 0;
};

// Memory of the process that is no memory until it is committed: any other access is a SIGSEGV.
class PagedRange final : public AddressRange {
 public:
  explicit PagedRange(Pages& pages) : pages_(pages) {
    base_ = static_cast<char*>(
        mmap(nullptr, kPages * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~PagedRange() override { munmap(base_, kPages * kPage); }
  char* base() const override { return base_; }
  int64_t bytes() const override { return kPages * kPage; }
  int64_t page() const override { return kPage; }
  bool Commit(int64_t begin, int64_t end) override {
    for (int64_t page = begin / kPage; page * kPage < end; ++page) {
      if (pages_.mapped.contains(page)) continue;
      if (static_cast<int64_t>(pages_.mapped.size()) == pages_.most) return false;
      pages_.mapped.insert(page);
      ++pages_.maps;
      mprotect(base_ + page * kPage, kPage, PROT_READ | PROT_WRITE);
    }
    return true;
  }
  void Decommit(int64_t begin, int64_t end) override {
    EXPECT_EQ(begin % kPage, 0);
    EXPECT_EQ(end % kPage, 0);
    for (int64_t page = begin / kPage; page < end / kPage; ++page) {
      if (pages_.mapped.erase(page) != 0) mprotect(base_ + page * kPage, kPage, PROT_NONE);
    }
  }

 private:
  Pages& pages_;
  char* base_;
};

char* Get(CachingAllocator& allocator, int64_t bytes) {
  char* block = static_cast<char*>(allocator.Allocate(bytes, kKind));
  std::memset(block, 1, static_cast<size_t>(bytes));
  return block;
}

TEST(AddressRangeTest, OnlyWhatIsUsedHasMemory) {
  Pages pages;
  CachingAllocator allocator(std::make_unique<PagedRange>(pages));
  EXPECT_EQ(pages.mapped.size(), 0u);
  char* small = Get(allocator, 100);
  EXPECT_EQ(pages.mapped.size(), 1u);
  char* large = Get(allocator, 3 * kPage);
  EXPECT_EQ(pages.mapped.size(), 4u);
  allocator.Free(large, 3 * kPage, kKind);
  allocator.Free(small, 100, kKind);
  EXPECT_EQ(pages.mapped.size(), 4u);
}

TEST(AddressRangeTest, AStepThatRepeatsMapsNothing) {
  Pages pages;
  CachingAllocator allocator(std::make_unique<PagedRange>(pages));
  int after_first = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<std::pair<char*, int64_t>> blocks;
    for (int64_t bytes : {kPage / 2, 3 * kPage + 64, int64_t{4096}, 5 * kPage}) {
      blocks.emplace_back(Get(allocator, bytes), bytes);
    }
    for (const auto& [block, bytes] : blocks) allocator.Free(block, bytes, kKind);
    if (step == 0) after_first = pages.maps;
  }
  EXPECT_EQ(pages.maps, after_first);
}

TEST(AddressRangeTest, TrimKeepsPagesThatHoldABlock) {
  Pages pages;
  CachingAllocator allocator(std::make_unique<PagedRange>(pages));
  char* first = Get(allocator, 2 * kPage + 4096);
  char* held = Get(allocator, 8192);
  char* last = Get(allocator, 4 * kPage);
  allocator.Free(first, 2 * kPage + 4096, kKind);
  allocator.Free(last, 4 * kPage, kKind);
  allocator.Trim();
  EXPECT_EQ(pages.mapped, std::set<int64_t>{2});
  std::memset(held, 2, 8192);
  allocator.Free(held, 8192, kKind);
  allocator.Trim();
  EXPECT_EQ(pages.mapped.size(), 0u);
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
  // What was given back is there again when it is asked for.
  allocator.Free(Get(allocator, 3 * kPage), 3 * kPage, kKind);
}

TEST(AddressRangeTest, MemoryInHolesServesALargerBlockElsewhere) {
  Pages pages{.most = 8};
  CachingAllocator allocator(std::make_unique<PagedRange>(pages));
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Get(allocator, kPage));
  for (int i = 0; i < 8; i += 2) allocator.Free(blocks[static_cast<size_t>(i)], kPage, kKind);
  // Four pages are free, no two of them adjacent.
  char* large = Get(allocator, 3 * kPage);
  EXPECT_LE(pages.mapped.size(), 8u);
  for (int i = 1; i < 8; i += 2) {
    EXPECT_EQ(blocks[static_cast<size_t>(i)][kPage - 1], 1);
    allocator.Free(blocks[static_cast<size_t>(i)], kPage, kKind);
  }
  allocator.Free(large, 3 * kPage, kKind);
}

TEST(AddressRangeTest, WithoutMemoryItSaysWhatHoldsIt) {
  Pages pages{.most = 4};
  CachingAllocator allocator(std::make_unique<PagedRange>(pages));
  char* held = static_cast<char*>(allocator.Allocate(2 * kPage, MemoryCategory::kOptimizer));
  try {
    allocator.Allocate(3 * kPage, kKind);
    FAIL() << "there is memory for four pages only";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(3 * kPage)), std::string::npos) << text;
    EXPECT_NE(text.find("optimizer state"), std::string::npos) << text;
  }
  EXPECT_EQ(allocator.stats().total.current_bytes, 2 * kPage);
  // The refused request took nothing with it.
  char* fits = Get(allocator, 2 * kPage);
  allocator.Free(fits, 2 * kPage, kKind);
  allocator.Free(held, 2 * kPage, MemoryCategory::kOptimizer);
}

TEST(AddressRangeTest, RandomUseNeverTouchesWhatIsNotThere) {
  std::mt19937 random(7);
  Pages pages{.most = 40};
  CachingAllocator allocator(std::make_unique<PagedRange>(pages));
  std::vector<std::pair<char*, int64_t>> live;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    if (i % 100 == 99) allocator.Trim();
    if (live.size() > 8 || (!live.empty() && random() % 3 == 0)) {
      const size_t at = random() % live.size();
      const auto [block, bytes] = live[at];
      ASSERT_EQ(block[0], static_cast<char>(bytes % 100));
      ASSERT_EQ(block[bytes - 1], static_cast<char>(bytes % 100));
      allocator.Free(block, bytes, kKind);
      live.erase(live.begin() + static_cast<int64_t>(at));
      continue;
    }
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (i % 2 == 0 ? 8000 : 10 * kPage));
    try {
      char* block = static_cast<char*>(allocator.Allocate(bytes, kKind));
      std::memset(block, static_cast<int>(bytes % 100), static_cast<size_t>(bytes));
      live.emplace_back(block, bytes);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (const auto& [block, bytes] : live) allocator.Free(block, bytes, kKind);
  allocator.Trim();
  EXPECT_EQ(pages.mapped.size(), 0u);
}

}  // namespace
}  // namespace sherd
