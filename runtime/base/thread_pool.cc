#include "sherd/runtime/base/thread_pool.h"

#include <algorithm>
#include <utility>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread.h"

namespace sherd {

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  SHERD_CHECK(threads >= 1, "a thread pool needs at least one thread");
  for (int i = 1; i < threads; ++i)
    workers_.push_back(StartThread([this, i] { WorkerLoop(i); }, "sherd/pool"));
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain,
                             absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (threads_ == 1 || n <= grain || busy_.exchange(true, std::memory_order_acquire)) {
    body(0, n);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    n_ = n;
    grain_ = grain;
    body_ = &body;
    error_ = nullptr;
    pending_ = threads_ - 1;
    ++generation_;
  }
  start_.notify_all();
  RunShare(0);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return pending_ == 0; });
  const std::exception_ptr error = std::exchange(error_, nullptr);
  lock.unlock();
  busy_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    RunShare(worker);
    std::lock_guard<std::mutex> lock(mutex_);
    if (--pending_ == 0) done_.notify_one();
  }
}

void ThreadPool::RunShare(int worker) {
  const int64_t grains = (n_ + grain_ - 1) / grain_;
  const int64_t begin = grains * worker / threads_ * grain_;
  const int64_t end = std::min(n_, grains * (worker + 1) / threads_ * grain_);
  if (begin >= end) return;
  try {
    (*body_)(begin, end);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace sherd
