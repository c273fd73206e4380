#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sherd {

// Runs loops over a fixed number of threads, the caller's included.
//
// An object the trainer owns through its Device; nothing is process-wide. With one thread
// everything runs inline and no thread is started. Threads: safe. A loop that comes while another
// runs, from a body or from another thread, runs inline on the thread that asks.
class ThreadPool {
 public:
  // Starts threads - 1 of them, with signals blocked as by StartThread. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  // REQUIRES: no loop is running.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // How many threads share a loop.
  int threads() const { return threads_; }

  // Calls `body(begin, end)` for disjoint ranges that cover [0, n), and returns when all are done.
  // Ranges are multiples of `grain` long (but for the last), so a caller whose partial results
  // belong to grains gets the same bits with any number of threads.
  // Errors: the first exception of a body is thrown again here, after the others have ended.
  void ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body);

 private:
  void WorkerLoop(int worker);
  // Runs the part of the loop that belongs to one of threads_, always the same for equal loops.
  void RunShare(int worker);

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  uint64_t generation_ = 0;  // how many loops there were: what wakes a worker
  int pending_ = 0;          // workers that have not ended their part
  bool stop_ = false;
  std::atomic<bool> busy_ = false;  // a loop has the workers
  int64_t n_ = 0;
  int64_t grain_ = 1;
  const absl::FunctionRef<void(int64_t, int64_t)>* body_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace sherd
