#include "sherd/runtime/core/device.h"

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread_pool.h"
#include "sherd/runtime/core/allocator.h"

namespace sherd {

struct Device::State {
  State(DeviceId id, int threads) : id(id), pool(threads) {}
  State(DeviceId id, int threads, MemorySource memory)
      : id(id), allocator(std::move(memory)), pool(threads) {}
  State(DeviceId id, std::unique_ptr<AddressRange> range, std::unique_ptr<DeviceBackend> backend)
      : id(id), allocator(std::move(range)), pool(1), backend(std::move(backend)) {}
  DeviceId id;
  CachingAllocator allocator;
  ThreadPool pool;
  std::unique_ptr<DeviceBackend> backend;  // null: a CPU
  std::mutex slots_mutex;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> slots;
};

std::string DeviceId::ToString() const {
  return absl::StrCat(kind == DeviceKind::kCpu ? "cpu:" : "cuda:", index);
}

Device Device::Cpu(CpuOptions options) {
  if (options.index < 0 || options.threads < 1) {
    ThrowInvalidArgument(
        absl::StrCat("a CPU device needs an index >= 0 and at least one thread, got index ",
                     options.index, " and ", options.threads, " threads"));
  }
  Device device;
  const DeviceId id{DeviceKind::kCpu, options.index};
  const bool own = !options.memory.allocate && !options.memory.free;
  device.state_ = own ? std::make_shared<State>(id, options.threads)
                      : std::make_shared<State>(id, options.threads, std::move(options.memory));
  return device;
}

Device Device::Of(const DeviceId& id, std::unique_ptr<AddressRange> range,
                  std::unique_ptr<DeviceBackend> backend) {
  Device device;
  device.state_ = std::make_shared<State>(id, std::move(range), std::move(backend));
  return device;
}

const DeviceId& Device::id() const {
  SHERD_CHECK(state_ != nullptr, "an undefined device was used");
  return state_->id;
}

CachingAllocator& Device::allocator() const { return state_->allocator; }
ThreadPool& Device::pool() const { return state_->pool; }
const DeviceBackend* Device::backend() const { return state_->backend.get(); }

void Device::Zero(void* to, int64_t bytes) const {
  if (bytes == 0) return;
  if (state_->backend != nullptr) return state_->backend->Zero(to, bytes);
  std::memset(to, 0, static_cast<size_t>(bytes));
}

void Device::Copy(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  if (state_->backend != nullptr) return state_->backend->Copy(to, from, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void Device::CopyFromHost(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  if (state_->backend != nullptr) return state_->backend->CopyFromHost(to, from, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void Device::CopyToHost(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  if (state_->backend != nullptr) return state_->backend->CopyToHost(to, from, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void* Device::SlotObject(const void* key, std::shared_ptr<void> (*make)()) const {
  SHERD_CHECK(state_ != nullptr, "an undefined device was used");
  std::lock_guard<std::mutex> lock(state_->slots_mutex);
  for (const auto& [slot_key, object] : state_->slots) {
    if (slot_key == key) return object.get();
  }
  return state_->slots.emplace_back(key, make()).second.get();
}

}  // namespace sherd
