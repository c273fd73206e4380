#include "sherd/runtime/core/stream.h"

#include <optional>
#include <utility>

#include "sherd/runtime/base/thread.h"

namespace sherd {

struct Work::State {
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  std::shared_ptr<const Error> error;
  Device device;                             // keeps the event's device alive
  std::shared_ptr<const DeviceEvent> event;  // after what the job asked of the device
};

struct Stream::Job {
  ErrorContext context;
  std::function<void()> run;
  std::shared_ptr<Work::State> state;
  std::shared_ptr<const DeviceEvent> after;  // what the device had been asked before
};

bool Work::done() const {
  if (state_ == nullptr) return true;
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->done && (state_->event == nullptr || state_->event->Done());
}

void Work::Wait() const {
  if (state_ == nullptr) return;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->finished.wait(lock, [this] { return state_->done; });
  if (state_->error != nullptr) ThrowError(*state_->error);
  if (state_->event != nullptr) state_->device.backend()->queue().WaitFor(*state_->event);
}

Stream::Stream(std::string name, Device device)
    : name_(std::move(name)),
      device_(std::move(device)),
      backend_(device_.defined() ? device_.backend() : nullptr),
      queue_(backend_ != nullptr ? backend_->MakeQueue(name_) : nullptr),
      thread_(StartThread([this] { Loop(); }, "sherd/" + name_)) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Work Stream::Enqueue(ErrorContext context, std::function<void()> job) {
  Work work;
  work.state_ = std::make_shared<Work::State>();
  std::shared_ptr<const DeviceEvent> after;
  if (backend_ != nullptr) {
    work.state_->device = device_;
    after = backend_->queue().Record();
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back({std::move(context), std::move(job), work.state_, std::move(after)});
  }
  wake_.notify_one();
  return work;
}

void Stream::Synchronize() {
  Enqueue({.op = "synchronize"}, [] {}).Wait();
}

void Stream::Recover() {
  std::lock_guard<std::mutex> lock(mutex_);
  failure_ = nullptr;
}

void Stream::Loop() {
  std::optional<QueueScope> scope;
  if (backend_ != nullptr) scope.emplace(*backend_, *queue_);
  for (;;) {
    Job job;
    std::shared_ptr<const Error> failure;
    std::shared_ptr<const DeviceEvent> event;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      failure = failure_;
    }
    if (failure == nullptr) {
      try {
        if (job.after != nullptr) queue_->WaitFor(*job.after);
        job.run();
        if (queue_ != nullptr) event = queue_->Record();
      } catch (const Error& error) {
        failure = std::make_shared<const Error>(error.With(job.context));
      } catch (const std::exception& error) {
        failure =
            std::make_shared<const Error>(absl::StatusCode::kUnknown, error.what(), job.context);
      } catch (...) {
        failure = std::make_shared<const Error>(
            absl::StatusCode::kUnknown, "an exception that is no std::exception", job.context);
      }
      if (failure != nullptr) {
        std::lock_guard<std::mutex> lock(mutex_);
        failure_ = failure;
      }
    }
    job.run = nullptr;  // what the job held is released before anybody is told that it is done
    std::lock_guard<std::mutex> lock(job.state->mutex);
    job.state->done = true;
    job.state->error = std::move(failure);
    job.state->event = std::move(event);
    job.state->finished.notify_all();
  }
}

}  // namespace sherd
