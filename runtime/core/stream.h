#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

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
// Ownership: the destructor runs what is queued, then joins, or leaves the thread to others.
class Stream {
 public:
  // `name` appears in error messages, and "sherd/<name>" is the thread's. `device`: whose work the
  // jobs are; undefined or a CPU: done when they return.
  explicit Stream(std::string name, Device device = {});
  // As above, but its jobs run on the thread of `other`, so those of the two are begun in the order
  // in which they were enqueued. For jobs that only queue work for the device, where the device may
  // do that of the two at once. Ownership: `other` may go before.
  Stream(std::string name, Device device, const Stream& other);
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
  struct Worker;  // a thread with its jobs
  Stream(std::string name, Device device, std::shared_ptr<Worker> worker);
  Work Push(ErrorContext context, std::function<void()> job,
            std::shared_ptr<const DeviceEvent> after);
  void Run(Job& job);

  const std::string name_;
  const Device device_;
  const DeviceBackend* const backend_;  // null: no queue
  std::unique_ptr<DeviceQueue> queue_;
  std::mutex mutex_;
  std::shared_ptr<const Error> failure_;
  std::shared_ptr<Worker> worker_;
};

}  // namespace sherd
