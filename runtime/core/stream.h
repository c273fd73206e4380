#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

// The completion of one asynchronous job. A handle, cheap to copy; a default one is complete.
//
// Threads: safe.
class Work {
 public:
  Work() = default;

  bool done() const;
  // Returns when the job has run; what the caller then asks of the stream's device comes after what
  // the job asked of it, and the host does not wait for that. Errors: throws the job's error, with
  // the context given at enqueue, at the first wait and at every later one.
  void Wait() const;

 private:
  friend class Stream;
  struct State;
  std::shared_ptr<State> state_;
};

// Jobs that run one after another on a thread of their own.
//
// For a device that works on its own the thread has a queue of its own too: what a job asks of the
// device starts after all that was asked of it by whoever enqueued the job, before that. So memory
// that a caller frees may be taken for a job at once, and the other way round after a Wait.
// After a job failed the stream refuses the rest: their Work carries the first error. The thread
// blocks all signals, so that a broken connection shows as an error code and not as SIGPIPE.
// Ownership: the destructor runs what is queued, then joins.
class Stream {
 public:
  // `name` appears in error messages, and "sherd/<name>" is the thread's. `device`: whose work the
  // jobs are; undefined or a CPU: done when they return.
  explicit Stream(std::string name, Device device = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Queues `job`. `context` says what it is and who asked for it.
  Work Enqueue(ErrorContext context, std::function<void()> job);
  // Returns when everything queued so far has run; throws the stream's first error.
  void Synchronize();
  // Forgets a failure, so that the stream takes jobs again.
  void Recover();

  const std::string& name() const { return name_; }

 private:
  struct Job;
  void Loop();

  const std::string name_;
  const Device device_;
  const DeviceBackend* const backend_;  // null: no queue
  std::unique_ptr<DeviceQueue> queue_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::shared_ptr<const Error> failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace sherd
