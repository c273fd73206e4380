#include "stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "machine.h"

namespace emulated {

void Progress::Set(uint32_t value) {
  value_.store(value, std::memory_order_release);
  syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool Progress::Reached(uint32_t value) const {
  if (static_cast<int32_t>(value_.load(std::memory_order_relaxed) - value) < 0) return false;
  value_.load(std::memory_order_acquire);
  return true;
}

void Progress::Wait(uint32_t value) const {
  while (!Reached(value)) {
    const uint32_t seen = value_.load(std::memory_order_relaxed);
    if (static_cast<int32_t>(seen - value) >= 0) continue;
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
}

}  // namespace emulated

CUstream_st::CUstream_st(int device, bool synchronous)
    : device_(device), synchronous_(synchronous), last_(new Job), first_(last_) {
  sem_init(&queued_, 0, 0);
  if (synchronous_) return;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{64} << 20);  // static shared memory of all kernels
  if (pthread_create(&thread_, &attributes, &CUstream_st::Worker, this) != 0) {
    std::fprintf(stderr, "cuda_emulator: no thread for a stream\n");
    std::abort();
  }
  pthread_attr_destroy(&attributes);
}

CUstream_st::~CUstream_st() {
  if (!synchronous_) {
    Push(nullptr);
    pthread_join(thread_, nullptr);
  }
  delete first_;
  sem_destroy(&queued_);
}

void CUstream_st::Push(std::function<void()> job) {
  if (synchronous_) {
    emulated::Work work;
    job();
    return;
  }
  auto* added = new Job;
  added->run = std::move(job);
  std::lock_guard lock(mutex_);
  ++pushed_;
  last_->next.store(added, std::memory_order_release);
  last_ = added;
  sem_post(&queued_);
}

uint32_t CUstream_st::pushed() {
  std::lock_guard lock(mutex_);
  return pushed_;
}

void* CUstream_st::Worker(void* self) {
  static_cast<CUstream_st*>(self)->WorkOn();
  return nullptr;
}

void CUstream_st::WorkOn() {
  for (uint32_t job = 1;; ++job) {
    while (sem_wait(&queued_) != 0) {
    }
    Job* next = first_->next.load(std::memory_order_acquire);
    delete first_;
    first_ = next;
    if (next->run == nullptr) return;
    {
      emulated::Work work;
      next->run();
    }
    next->run = nullptr;
    done_.Set(job);
  }
}

namespace emulated {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct Streams {
  std::mutex mutex;
  std::vector<CUstream_st*> all;
  std::vector<CUstream_st*> destroyed;  // by the user, with work left
  std::map<int, CUstream_st*> defaults;
  int waiting = 0;  // threads that look at streams without the lock
};

Streams& TheStreams() {
  static auto* streams = new Streams;
  return *streams;
}

CUstream_st* Make(Streams& streams, int device) {
  auto* made = new CUstream_st(device, Machine::Get().options().synchronous);
  streams.all.push_back(made);
  return made;
}

// Deletes those destroyed streams that have nothing left to do.
void Reap(Streams& streams) {
  if (streams.waiting > 0) return;
  std::erase_if(streams.destroyed, [](CUstream_st* stream) {
    if (!stream->Done(stream->pushed())) return false;
    delete stream;
    return true;
  });
}

Moment* NewMoment() {
  static auto* moments = new std::pair<std::mutex, std::deque<Moment>>;
  std::lock_guard lock(moments->first);
  return &moments->second.emplace_back();
}

cudaError_t WaitFor(cudaEvent_t event) {
  if (Moment* last = event->last.load(std::memory_order_acquire)) last->reached.Wait(1);
  return cudaSuccess;
}

}  // namespace

cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

int CurrentDevice() { return current_device; }

cudaError_t StreamOf(cudaStream_t stream, CUstream_st** found) {
  if (cudaError_t error = Machine::Get().Check(current_device)) return error;
  if (stream != nullptr) {
    *found = stream;
    return stream->device() == current_device ? cudaSuccess : cudaErrorInvalidResourceHandle;
  }
  Streams& streams = TheStreams();
  std::lock_guard lock(streams.mutex);
  CUstream_st*& of = streams.defaults[current_device];
  if (of == nullptr) of = Make(streams, current_device);
  *found = of;
  return cudaSuccess;
}

void WaitForDevice(int device) {
  std::vector<std::pair<CUstream_st*, uint32_t>> jobs;
  Streams& streams = TheStreams();
  {
    std::lock_guard lock(streams.mutex);
    ++streams.waiting;
    for (const auto* list : {&streams.all, &streams.destroyed}) {
      for (CUstream_st* stream : *list) {
        if (stream->device() == device) jobs.emplace_back(stream, stream->pushed());
      }
    }
  }
  for (const auto& [stream, job] : jobs) stream->Wait(job);
  std::lock_guard lock(streams.mutex);
  --streams.waiting;
}

void DropStreams() {
  Streams& streams = TheStreams();
  std::lock_guard lock(streams.mutex);
  for (CUstream_st* stream : streams.all) delete stream;
  for (CUstream_st* stream : streams.destroyed) delete stream;
  streams.all.clear();
  streams.destroyed.clear();
  streams.defaults.clear();
}

}  // namespace emulated

using emulated::Machine;
using emulated::Remember;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return emulated::last_error; }

cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = Machine::Get().Check(device)) return Remember(error);
  emulated::current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (cudaError_t error = Machine::Get().Check(0)) return Remember(error);
  *device = emulated::current_device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  Machine& machine = Machine::Get();
  const int device = emulated::CurrentDevice();
  if (cudaError_t error = machine.Check(device)) return Remember(error);
  if (flags > cudaStreamNonBlocking) return Remember(cudaErrorInvalidValue);
  emulated::Streams& streams = emulated::TheStreams();
  std::lock_guard lock(streams.mutex);
  emulated::Reap(streams);
  *stream = emulated::Make(streams, device);
  emulated::Count(machine.counts.streams);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulated::Streams& streams = emulated::TheStreams();
  std::lock_guard lock(streams.mutex);
  if (std::erase(streams.all, stream) == 0) return Remember(cudaErrorInvalidResourceHandle);
  streams.destroyed.push_back(stream);
  emulated::Reap(streams);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st* of = nullptr;
  if (cudaError_t error = emulated::StreamOf(stream, &of)) return Remember(error);
  emulated::Count(Machine::Get().counts.synchronisations);
  of->Wait(of->pushed());
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUstream_st* of = nullptr;
  if (cudaError_t error = emulated::StreamOf(stream, &of)) return Remember(error);
  return of->Done(of->pushed()) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  emulated::Count(Machine::Get().counts.synchronisations);
  emulated::WaitForDevice(emulated::CurrentDevice());
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  auto* made = new CUevent_st;
  made->device = emulated::CurrentDevice();
  made->flags = flags;
  *event = made;
  emulated::Count(Machine::Get().counts.events);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUstream_st* of = nullptr;
  if (cudaError_t error = emulated::StreamOf(stream, &of)) return Remember(error);
  if (event == nullptr || event->device != of->device()) {
    return Remember(cudaErrorInvalidResourceHandle);
  }
  emulated::Moment* moment = emulated::NewMoment();
  event->last.store(moment, std::memory_order_release);
  of->Push([moment] {
    moment->time = std::chrono::steady_clock::now();
    moment->reached.Set(1);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUstream_st* of = nullptr;
  if (cudaError_t error = emulated::StreamOf(stream, &of)) return Remember(error);
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  emulated::Moment* moment = event->last.load(std::memory_order_acquire);
  if (moment != nullptr) of->Push([moment] { moment->reached.Wait(1); });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  emulated::Moment* moment = event->last.load(std::memory_order_acquire);
  return moment == nullptr || moment->reached.Reached(1) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  emulated::Count(Machine::Get().counts.synchronisations);
  return emulated::WaitFor(event);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (start == nullptr || end == nullptr || start->last == nullptr || end->last == nullptr ||
      ((start->flags | end->flags) & cudaEventDisableTiming) != 0) {
    return Remember(cudaErrorInvalidResourceHandle);
  }
  const emulated::Moment* from = start->last;
  const emulated::Moment* to = end->last;
  if (!from->reached.Reached(1) || !to->reached.Reached(1)) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

}  // extern "C"
