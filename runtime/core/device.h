#pragma once

#include <memory>
#include <string>

#include "sherd/runtime/core/address_range.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/device_backend.h"

namespace sherd {

class ThreadPool;

enum class DeviceKind { kCpu, kCuda };

// Which device a tensor lives on. `cpu:0` and `cpu:1` are different devices: ops refuse to mix
// them.
struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  std::string ToString() const;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

struct CpuOptions {
  int index = 0;
  // Threads that kernels use, the caller's included. One per core the process may use is the most
  // that helps; a rank per core wants 1.
  int threads = 1;
  // Where its memory comes from; empty: a range of addresses of its own, with a cache.
  MemorySource memory = {};
};

// A handle to one device: its memory and its compute threads. Cheap to copy.
//
// An object the program makes and passes on; there is no default device. Two devices with equal ids
// but made by two calls count their memory apart, which is how ranks that are threads of one
// process keep their own figures. Ownership: tensors keep their device alive.
class Device {
 public:
  Device() = default;
  // Errors: kInvalidArgument for a negative index, no thread, or a source of memory that lacks one
  // of its functions.
  static Device Cpu(CpuOptions options = {});
  // A device of another kind, whose memory is `range` and whose work `backend` does: how
  // runtime/cuda makes its own. The backend goes before the memory, the slots before both.
  static Device Of(const DeviceId& id, std::unique_ptr<AddressRange> range,
                   std::unique_ptr<DeviceBackend> backend);

  bool defined() const { return state_ != nullptr; }
  const DeviceId& id() const;
  CachingAllocator& allocator() const;
  ThreadPool& pool() const;
  // What works for this device; null for a CPU, whose kernels run on the pool.
  const DeviceBackend* backend() const;

  // Bytes of this device, and between it and the host; in the order of its queue. See
  // DeviceBackend.
  void Zero(void* to, int64_t bytes) const;
  void Copy(void* to, const void* from, int64_t bytes) const;
  void CopyFromHost(void* to, const void* from, int64_t bytes) const;
  void CopyToHost(void* to, const void* from, int64_t bytes) const;

  // The object of type T that lives with this device, made by the first call for T.
  //
  // Where upper layers keep what belongs to a device and not to the process: a cache of primitives,
  // the choice of an instruction set. It dies with the device, before the allocator and the pool.
  // Threads: safe to call; T looks after itself. REQUIRES: T{} does not call Slot.
  template <typename T>
  T& Slot() const {
    static const char key = 0;
    return *static_cast<T*>(
        SlotObject(&key, [] { return std::shared_ptr<void>(std::make_shared<T>()); }));
  }

  // Whether tensors of the two may meet in an op.
  friend bool operator==(const Device& a, const Device& b) { return a.id() == b.id(); }

 private:
  void* SlotObject(const void* key, std::shared_ptr<void> (*make)()) const;

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sherd
