#include "sherd/runtime/base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread.h"

namespace sherd {
namespace {

using Range = std::pair<int64_t, int64_t>;

std::vector<Range> RangesOf(ThreadPool& pool, int64_t n, int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard<std::mutex> lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(ThreadPoolTest, RangesCoverAllOnceAndBordersAreGrains) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {1, 2, 7, 64, 1000, 1001}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        int64_t covered = 0;
        for (const auto& [begin, end] : RangesOf(pool, n, grain)) {
          EXPECT_EQ(begin, covered) << threads << " threads, n " << n << ", grain " << grain;
          EXPECT_GT(end, begin);
          EXPECT_EQ(begin % grain, 0);
          covered = end;
        }
        EXPECT_EQ(covered, n);
      }
    }
  }
}

TEST(ThreadPoolTest, NothingIsCalledForNoElements) {
  ThreadPool pool(2);
  EXPECT_TRUE(RangesOf(pool, 0, 4).empty());
  EXPECT_TRUE(RangesOf(pool, -1, 4).empty());
}

TEST(ThreadPoolTest, AllThreadsTakePartInEveryLoop) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 3; ++loop) {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    pool.ParallelFor(3, 1, [&](int64_t, int64_t) {
      std::lock_guard<std::mutex> lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(ids.size(), 3u);
    EXPECT_EQ(ids.count(std::this_thread::get_id()), 1u);
  }
}

TEST(ThreadPoolTest, OneThreadRunsOnTheCaller) {
  ThreadPool pool(1);
  std::thread::id id;
  pool.ParallelFor(100, 1, [&](int64_t, int64_t) { id = std::this_thread::get_id(); });
  EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(ThreadPoolTest, NestedLoopRunsInline) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum = 0;
  std::atomic<int> strayed = 0;
  pool.ParallelFor(8, 1, [&](int64_t begin, int64_t end) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.ParallelFor(end - begin, 1, [&](int64_t from, int64_t to) {
      if (std::this_thread::get_id() != outer) ++strayed;
      for (int64_t i = from; i < to; ++i) sum += begin + i;
    });
  });
  EXPECT_EQ(sum, 28);
  EXPECT_EQ(strayed, 0);
}

TEST(ThreadPoolTest, LoopsOfSeveralThreadsDoNotMix) {
  ThreadPool pool(2);
  std::vector<int64_t> sums(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&pool, &sum = sums[t]] {
      for (int round = 0; round < 200; ++round) {
        std::vector<int64_t> values(100, 0);
        pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
        });
        sum += std::accumulate(values.begin(), values.end(), int64_t{0});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t sum : sums) EXPECT_EQ(sum, 200 * 4950);
}

TEST(ThreadPoolTest, ErrorOfABodyReachesTheCallerAndThePoolLivesOn) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int64_t bad : {0, 99}) {  // in the caller's share and in a worker's
      try {
        pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end) {
          if (begin <= bad && bad < end) ThrowInvalidArgument("element " + std::to_string(bad));
        });
        FAIL() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.message(), "element " + std::to_string(bad));
      }
      EXPECT_EQ(RangesOf(pool, 10, 1).back().second, 10);
    }
  }
}

TEST(ThreadPoolTest, ErrorIsThrownAfterTheOthersHaveEnded) {
  ThreadPool pool(2);
  std::atomic<int> running = 0;
  const auto body = [&](int64_t begin, int64_t) {
    if (begin == 0) ThrowInvalidArgument("early");
    ++running;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    --running;
  };
  EXPECT_THROW(pool.ParallelFor(2, 1, body), Error);
  EXPECT_EQ(running, 0);
}

TEST(ThreadPoolTest, RefusesNoThreads) { EXPECT_THROW(ThreadPool(0), Error); }

bool Blocked(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST(StartThreadTest, BlocksSignalsFromOutsideAndLeavesTheCallersMask) {
  bool pipe = false;
  bool term = false;
  bool fault = true;
  std::thread thread = StartThread([&] {
    pipe = Blocked(SIGPIPE);
    term = Blocked(SIGTERM);
    fault = Blocked(SIGSEGV);
  });
  thread.join();
  EXPECT_TRUE(pipe);
  EXPECT_TRUE(term);
  EXPECT_FALSE(fault);
  EXPECT_FALSE(Blocked(SIGPIPE));
  EXPECT_FALSE(Blocked(SIGTERM));
}

TEST(StartThreadTest, WorkersOfAPoolAreStartedSo) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> blocked = 0;
  pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() != caller && Blocked(SIGPIPE)) ++blocked;
  });
  EXPECT_EQ(blocked, 1);
}

}  // namespace
}  // namespace sherd
