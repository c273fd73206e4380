#include "sherd/runtime/cuda/internal/queue.h"

#include "sherd/runtime/cuda/internal/check.h"

namespace sherd::cuda {

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::Take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  Check(cudaSetDevice(index_), "cudaSetDevice");
  cudaEvent_t event = nullptr;
  Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

void EventPool::Return(cudaEvent_t event) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(event);
}

bool Event::Done() const {
  const cudaError_t answer = cudaEventQuery(event_);
  if (answer == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  Check(answer, "cudaEventQuery");
  return true;
}

Queue::Queue(int index, std::shared_ptr<EventPool> events, bool urgent)
    : index_(index), events_(std::move(events)) {
  Check(cudaSetDevice(index_), "cudaSetDevice");
  int least = 0, most = 0;
  Check(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? most : least),
        "cudaStreamCreateWithPriority");
}

Queue::~Queue() {
  cudaSetDevice(index_);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

cudaStream_t Queue::Use() const {
  Check(cudaSetDevice(index_), "cudaSetDevice");
  return stream_;
}

std::shared_ptr<const DeviceEvent> Queue::Record() {
  auto event = std::make_shared<Event>(events_);
  Check(cudaEventRecord(event->get(), Use()), "cudaEventRecord");
  return event;
}

void Queue::WaitFor(const DeviceEvent& event) {
  Check(cudaStreamWaitEvent(Use(), static_cast<const Event&>(event).get(), 0),
        "cudaStreamWaitEvent");
}

void Queue::Synchronize() { Check(cudaStreamSynchronize(Use()), "cudaStreamSynchronize"); }

}  // namespace sherd::cuda
