#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace sherd {

namespace kernels {
class KernelBackend;
}

// A moment in the work of a queue: complete when all that was queued before it has run.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Errors: throws what the device found wrong.
  virtual bool Done() const = 0;
};

// Work that a device does in the order it was queued, while the host goes on.
//
// Threads: one at a time. Ownership: the device outlives its queues.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  // This moment: after everything queued so far.
  virtual std::shared_ptr<const DeviceEvent> Record() = 0;
  // What is queued from now on starts after `event`, one of the same device.
  virtual void WaitFor(const DeviceEvent& event) = 0;
  // Returns when everything queued so far has run. Errors: throws what the device found wrong.
  virtual void Synchronize() = 0;
};

// What a device that works on its own does for the layers above; the CPU has none, since its work
// is done when a call returns.
//
// Memory operations and kernels go to the queue of the calling thread: the one a QueueScope bound,
// else the device's own, which is where a model computes. Errors: all throw sherd::Error; what goes
// wrong while the device works is thrown by a later call that waits.
// Threads: safe, but for what the queues say.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  // The queue of the calling thread.
  DeviceQueue& queue() const;
  // Where threads without a queue of their own put their work.
  virtual DeviceQueue& compute_queue() const = 0;
  // Another queue, for a thread of its own. `name` is for messages and profilers.
  virtual std::unique_ptr<DeviceQueue> MakeQueue(const std::string& name) const = 0;

  // Sets bytes of the device to zero.
  virtual void Zero(void* to, int64_t bytes) const = 0;
  // Copies between memories of the device that do not overlap.
  virtual void Copy(void* to, const void* from, int64_t bytes) const = 0;
  // Copies from the host. Returns when `from` may change; the device may not have it yet.
  virtual void CopyFromHost(void* to, const void* from, int64_t bytes) const = 0;
  // Copies to the host, and returns when it is there: all work queued before has run.
  virtual void CopyToHost(void* to, const void* from, int64_t bytes) const = 0;
  // Copies that return at once, for host memory of HostMemory() that nobody touches before an event
  // recorded after them is done.
  virtual void CopyFromHostLater(void* to, const void* from, int64_t bytes) const = 0;
  virtual void CopyToHostLater(void* to, const void* from, int64_t bytes) const = 0;
  // Host memory that the device reads and writes at full speed (page-locked). Slow to make.
  virtual std::shared_ptr<void> HostMemory(int64_t bytes) const = 0;
  // Whether an address lies in this device's memory, so that groups can tell it from the host's.
  virtual bool Owns(const void* address) const = 0;

  // Its arithmetic.
  virtual const kernels::KernelBackend& kernels() const = 0;
  // "NVIDIA H200, compute capability 9.0, 139 GiB, driver 13.0"
  virtual std::string Describe() const = 0;

 private:
  friend class QueueScope;
};

// While this lives, what the calling thread asks of `backend` goes to `queue`. Scopes nest.
class QueueScope {
 public:
  QueueScope(const DeviceBackend& backend, DeviceQueue& queue);
  ~QueueScope();
  QueueScope(const QueueScope&) = delete;
  QueueScope& operator=(const QueueScope&) = delete;

 private:
  friend class DeviceBackend;
  const DeviceBackend* const backend_;
  DeviceQueue* const queue_;
  QueueScope* const outer_;
};

}  // namespace sherd
