#include "sherd/runtime/core/stream.h"

#include <utility>

#include "sherd/runtime/base/thread.h"

namespace sherd {

struct Work::State {
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  std::shared_ptr<const Error> error;
};

struct Stream::Job {
  ErrorContext context;
  std::function<void()> run;
  std::shared_ptr<Work::State> state;
};

bool Work::done() const {
  if (state_ == nullptr) return true;
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->done;
}

void Work::Wait() const {
  if (state_ == nullptr) return;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->finished.wait(lock, [this] { return state_->done; });
  if (state_->error != nullptr) ThrowError(*state_->error);
}

Stream::Stream(std::string name)
    : name_(std::move(name)), thread_(StartThread([this] { Loop(); }, "sherd/" + name_)) {}

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
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back({std::move(context), std::move(job), work.state_});
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
  for (;;) {
    Job job;
    std::shared_ptr<const Error> failure;
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
        job.run();
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
    job.state->finished.notify_all();
  }
}

}  // namespace sherd
