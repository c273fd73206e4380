#include "sherd/runtime/core/stream.h"

#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>
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
  Stream* stream = nullptr;
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

struct Stream::Worker {
  explicit Worker(const std::string& name) : thread(StartThread([this] { Loop(); }, name)) {}
  ~Worker() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stop = true;
    }
    wake.notify_one();
    thread.join();
  }

  void Loop() {
    for (;;) {
      Job job;
      {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, [this] { return stop || !jobs.empty(); });
        if (jobs.empty()) return;
        job = std::move(jobs.front());
        jobs.pop_front();
      }
      job.stream->Run(job);
    }
  }

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> jobs;
  bool stop = false;
  std::thread thread;
};

Stream::Stream(std::string name, Device device)
    : Stream(name, std::move(device), std::make_shared<Worker>("sherd/" + name)) {}

Stream::Stream(std::string name, Device device, const Stream& other)
    : Stream(std::move(name), std::move(device), other.worker_) {}

Stream::Stream(std::string name, Device device, std::shared_ptr<Worker> worker)
    : name_(std::move(name)),
      device_(std::move(device)),
      backend_(device_.defined() ? device_.backend() : nullptr),
      queue_(backend_ != nullptr ? backend_->MakeQueue(name_) : nullptr),
      worker_(std::move(worker)) {}

Stream::~Stream() {
  const Work last = Push(
      {}, [] {}, nullptr);
  std::unique_lock<std::mutex> lock(last.state_->mutex);
  last.state_->finished.wait(lock, [&] { return last.state_->done; });
}

Work Stream::Enqueue(ErrorContext context, std::function<void()> job) {
  std::shared_ptr<const DeviceEvent> after;
  if (backend_ != nullptr) after = backend_->queue().Record();
  return Push(std::move(context), std::move(job), std::move(after));
}

Work Stream::Push(ErrorContext context, std::function<void()> job,
                  std::shared_ptr<const DeviceEvent> after) {
  Work work;
  work.state_ = std::make_shared<Work::State>();
  work.state_->device = device_;
  {
    std::lock_guard<std::mutex> lock(worker_->mutex);
    worker_->jobs.push_back(
        {this, std::move(context), std::move(job), work.state_, std::move(after)});
  }
  worker_->wake.notify_one();
  return work;
}

void Stream::Synchronize() {
  Enqueue({.op = "synchronize"}, [] {}).Wait();
}

void Stream::Recover() {
  std::lock_guard<std::mutex> lock(mutex_);
  failure_ = nullptr;
}

void Stream::Run(Job& job) {
  std::optional<QueueScope> scope;
  if (backend_ != nullptr) scope.emplace(*backend_, *queue_);
  std::shared_ptr<const Error> failure;
  std::shared_ptr<const DeviceEvent> event;
  {
    std::lock_guard<std::mutex> lock(mutex_);
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
  scope.reset();      // the stream may go as soon as somebody is told
  std::lock_guard<std::mutex> lock(job.state->mutex);
  job.state->done = true;
  job.state->error = std::move(failure);
  job.state->event = std::move(event);
  job.state->finished.notify_all();
}

}  // namespace sherd
