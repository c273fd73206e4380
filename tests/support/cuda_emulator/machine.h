#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "emulator.h"

namespace emulated {

// A piece of address space that somebody asked for.
struct Range {
  enum Kind { kHost, kDevice, kMapped, kReserved };
  uintptr_t begin = 0;
  size_t size = 0;  // what the user sees
  Kind kind = kHost;
  int device = 0;
  bool open = false;        // may be touched
  void* mapping = nullptr;  // with the guard pages, if the piece owns them
  size_t mapping_size = 0;
  uintptr_t end() const { return begin + size; }
};

// A piece of a device's physical memory: `size` bytes of its file, from `offset`.
struct Physical {
  size_t size = 0;
  int64_t offset = 0;
  int device = 0;
  int maps = 0;
  bool released = false;
  bool fresh = true;
};

struct Counts {
  std::atomic<int64_t> launches{0}, copies[4]{}, copy_bytes[4]{}, sets{0}, matmuls{0},
      collectives{0}, synchronisations{0}, allocations{0}, frees{0}, host_allocations{0}, events{0},
      streams{0};
};

// All devices of the process. There is one, as there is one CUDA; it is never destroyed, since
// destructors of others still call CUDA.
class Machine {
 public:
  static Machine& Get();

  Options options() const;
  void set_options(const Options& options);

  // cudaSuccess if the driver is there and has the device.
  cudaError_t Check(int device) const;

  cudaError_t AllocateDevice(int device, size_t size, void** pointer);
  cudaError_t FreeDevice(void* pointer);
  cudaError_t AllocateHost(size_t size, void** pointer);
  cudaError_t FreeHost(void* pointer);
  void FreeAll();
  int64_t used(int device) const;

  // Whether `size` bytes from `pointer` are device memory; cudaErrorInvalidValue if they are only
  // in part, or leave the piece that they begin in.
  cudaError_t Locate(const void* pointer, size_t size, bool* on_device) const;
  bool IsHostPinned(const void* pointer) const;
  int DeviceOf(const void* pointer) const;

  // Virtual memory, for driver.cc. Sizes are multiples of kGranularity.
  static constexpr size_t kGranularity = size_t{2} << 20;
  bool Reserve(size_t size, uintptr_t* begin);
  bool Unreserve(uintptr_t begin, size_t size);
  cudaError_t CreatePhysical(int device, size_t size, uint64_t* handle);
  bool ReleasePhysical(uint64_t handle);
  bool Map(uintptr_t begin, size_t size, uint64_t handle);
  bool Unmap(uintptr_t begin, size_t size);
  bool SetAccess(uintptr_t begin, size_t size, bool open);

  // Between these two calls of a thread device memory may be touched; see Options::trap.
  void BeginWork();
  void EndWork();

  Counts counts;

 private:
  struct Device {
    int64_t used = 0;
    int file = -1;
    int64_t file_end = 0;
  };

  const Range* Find(uintptr_t address) const;
  void Protect(const Range& range, bool open) const;
  void DropPhysical(uint64_t handle);

  mutable std::mutex mutex_;
  Options options_;
  std::vector<Device> devices_{Device{}};
  std::map<uintptr_t, Range> ranges_;    // pieces, and maps inside of reservations
  std::map<uintptr_t, Range> reserved_;  // address space alone
  std::map<uintptr_t, uint64_t> map_handles_;
  std::map<uint64_t, Physical> physical_;
  uint64_t next_handle_ = 1;
  int working_ = 0;
};

// Returns `error`, which cudaGetLastError will tell.
cudaError_t Remember(cudaError_t error);

// Runs work with device memory open.
class Work {
 public:
  Work() { Machine::Get().BeginWork(); }
  ~Work() { Machine::Get().EndWork(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
};

inline void Count(std::atomic<int64_t>& count, int64_t by = 1) {
  count.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace emulated
