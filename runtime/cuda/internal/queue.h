#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/runtime/core/device_backend.h"

namespace sherd::cuda {

// Events of one device, kept for reuse: making one costs more than recording it.
//
// Threads: safe.
class EventPool {
 public:
  explicit EventPool(int index) : index_(index) {}
  ~EventPool();
  cudaEvent_t Take();
  void Return(cudaEvent_t event);

 private:
  const int index_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class Event final : public DeviceEvent {
 public:
  explicit Event(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->Take()) {}
  ~Event() override { pool_->Return(event_); }
  bool Done() const override;
  cudaEvent_t get() const { return event_; }

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t event_;
};

// A CUDA stream.
class Queue final : public DeviceQueue {
 public:
  // Of device `index`; more urgent ones go first where the device has room for one of two.
  Queue(int index, std::shared_ptr<EventPool> events, bool urgent);
  ~Queue() override;

  std::shared_ptr<const DeviceEvent> Record() override;
  void WaitFor(const DeviceEvent& event) override;
  void Synchronize() override;

  // Makes the device current on the calling thread; every use of the stream begins so.
  cudaStream_t Use() const;

 private:
  const int index_;
  const std::shared_ptr<EventPool> events_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace sherd::cuda
