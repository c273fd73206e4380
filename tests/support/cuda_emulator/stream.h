#pragma once

#include <pthread.h>
#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "cuda_runtime.h"

namespace emulated {

// [Note: what orders work] On a device only events and waits of the host order the work of two
// streams, and ThreadSanitizer should see exactly that order. So a worker never releases anything
// that others acquire but the numbers below, which are read by those who wait. It takes no lock and
// does not use std::atomic::wait, whose table is shared. The host gives it jobs through a list with
// one release store per job.

// A 32-bit number that goes up; threads wait until it is there.
class Progress {
 public:
  void Set(uint32_t value);
  bool Reached(uint32_t value) const;  // synchronises only if true
  void Wait(uint32_t value) const;

 private:
  std::atomic<uint32_t> value_{0};
};

// One recording of an event. Never freed: who frees it would be one more order.
struct Moment {
  Progress reached;  // 1 when the stream has come here
  std::chrono::steady_clock::time_point time;
};

}  // namespace emulated

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  std::atomic<emulated::Moment*> last{nullptr};
};

struct CUstream_st {
 public:
  CUstream_st(int device, bool synchronous);
  // Waits for what is queued.
  ~CUstream_st();

  int device() const { return device_; }
  // Runs `job` after all before it; in synchronous mode, before it returns.
  void Push(std::function<void()> job);
  // The number of the last job, for the next two.
  uint32_t pushed();
  bool Done(uint32_t job) const { return done_.Reached(job); }
  void Wait(uint32_t job) const { done_.Wait(job); }

 private:
  struct Job {
    std::function<void()> run;
    std::atomic<Job*> next{nullptr};
  };
  static void* Worker(void* self);
  void WorkOn();

  const int device_;
  const bool synchronous_;
  std::mutex mutex_;  // of those who push
  uint32_t pushed_ = 0;
  Job* last_;
  Job* first_;  // the worker's: the job that was taken last
  sem_t queued_;
  emulated::Progress done_;
  pthread_t thread_{};
};

namespace emulated {

// The stream itself, or the default stream of the current device. Error: a stream of another
// device.
cudaError_t StreamOf(cudaStream_t stream, CUstream_st** found);

// Waits for everything on a device.
void WaitForDevice(int device);

// Ends all streams.
void DropStreams();

// The device of the calling thread.
int CurrentDevice();

}  // namespace emulated
