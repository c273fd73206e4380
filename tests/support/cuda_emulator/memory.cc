#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "machine.h"

namespace emulated {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlign = 256;  // cudaMalloc's promise
constexpr size_t kPoisoned = size_t{64} << 20;

size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

void* MapAddresses(size_t size) {
  void* at = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

// Memory that ends where a guard page begins, but for the rounding to kAlign.
bool MapGuarded(size_t size, Range* range) {
  const size_t rounded = RoundUp(size, kAlign);
  const size_t pages = RoundUp(rounded, kPage);
  auto* at = static_cast<char*>(MapAddresses(pages + 2 * kPage));
  if (at == nullptr) return false;
  if (mprotect(at + kPage, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(at, pages + 2 * kPage);
    return false;
  }
  range->mapping = at;
  range->mapping_size = pages + 2 * kPage;
  range->begin = reinterpret_cast<uintptr_t>(at + kPage + pages - rounded);
  range->size = size;
  range->open = true;
  return true;
}

}  // namespace

Machine& Machine::Get() {
  static auto* machine = new Machine;
  return *machine;
}

Options Machine::options() const {
  std::lock_guard lock(mutex_);
  return options_;
}

void Machine::set_options(const Options& options) {
  std::lock_guard lock(mutex_);
  options_ = options;
  devices_.resize(std::max(options.devices, 1));
}

cudaError_t Machine::Check(int device) const {
  std::lock_guard lock(mutex_);
  if (options_.driver_version < CUDART_VERSION) return cudaErrorInsufficientDriver;
  if (options_.devices == 0) return cudaErrorNoDevice;
  return device < 0 || device >= options_.devices ? cudaErrorInvalidDevice : cudaSuccess;
}

int64_t Machine::used(int device) const {
  std::lock_guard lock(mutex_);
  return devices_[device].used;
}

cudaError_t Machine::AllocateDevice(int device, size_t size, void** pointer) {
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;
  std::lock_guard lock(mutex_);
  const auto rounded = static_cast<int64_t>(RoundUp(size, kAlign));
  Device& of = devices_[device];
  Range range;
  if (of.used + rounded > options_.memory_bytes || !MapGuarded(size, &range)) {
    return cudaErrorMemoryAllocation;
  }
  range.kind = Range::kDevice;
  range.device = device;
  of.used += rounded;
  *pointer = reinterpret_cast<void*>(range.begin);
  if (options_.poison) std::memset(*pointer, 0xff, std::min(size, kPoisoned));
  if (options_.trap && working_ == 0) Protect(range, false);
  ranges_[range.begin] = range;
  Count(counts.allocations);
  return cudaSuccess;
}

cudaError_t Machine::FreeDevice(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == ranges_.end() || found->second.kind != Range::kDevice) return cudaErrorInvalidValue;
  devices_[found->second.device].used -= static_cast<int64_t>(RoundUp(found->second.size, kAlign));
  munmap(found->second.mapping, found->second.mapping_size);
  ranges_.erase(found);
  Count(counts.frees);
  return cudaSuccess;
}

cudaError_t Machine::AllocateHost(size_t size, void** pointer) {
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;
  std::lock_guard lock(mutex_);
  Range range;
  if (!MapGuarded(size, &range)) return cudaErrorMemoryAllocation;
  *pointer = reinterpret_cast<void*>(range.begin);
  ranges_[range.begin] = range;
  Count(counts.host_allocations);
  return cudaSuccess;
}

cudaError_t Machine::FreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == ranges_.end() || found->second.kind != Range::kHost) return cudaErrorInvalidValue;
  munmap(found->second.mapping, found->second.mapping_size);
  ranges_.erase(found);
  return cudaSuccess;
}

void Machine::FreeAll() {
  std::lock_guard lock(mutex_);
  for (const auto& [begin, range] : ranges_) {
    if (range.mapping != nullptr) munmap(range.mapping, range.mapping_size);
  }
  for (const auto& [begin, range] : reserved_) munmap(range.mapping, range.mapping_size);
  for (Device& device : devices_) {
    if (device.file >= 0) close(device.file);
    device = Device{};
  }
  ranges_.clear();
  reserved_.clear();
  map_handles_.clear();
  physical_.clear();
}

const Range* Machine::Find(uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  return address < range.end() ? &range : nullptr;
}

cudaError_t Machine::Locate(const void* pointer, size_t size, bool* on_device) const {
  std::lock_guard lock(mutex_);
  auto at = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t end = at + size;
  const Range* range = Find(at);
  *on_device = range != nullptr && range->kind != Range::kHost;
  if (range == nullptr) {
    // Pageable memory, unless the address is one of a device that nothing is mapped to.
    auto after = reserved_.upper_bound(at);
    const bool unmapped = after != reserved_.begin() && at < std::prev(after)->second.end();
    return pointer == nullptr || unmapped ? cudaErrorInvalidValue : cudaSuccess;
  }
  while (range != nullptr && range->end() < end) {
    if (range->kind != Range::kMapped || !range->open) return cudaErrorInvalidValue;
    range = Find(range->end());
  }
  return range == nullptr || !range->open ? cudaErrorInvalidValue : cudaSuccess;
}

bool Machine::IsHostPinned(const void* pointer) const {
  std::lock_guard lock(mutex_);
  const Range* range = Find(reinterpret_cast<uintptr_t>(pointer));
  return range != nullptr && range->kind == Range::kHost;
}

int Machine::DeviceOf(const void* pointer) const {
  std::lock_guard lock(mutex_);
  const Range* range = Find(reinterpret_cast<uintptr_t>(pointer));
  return range == nullptr ? 0 : range->device;
}

bool Machine::Reserve(size_t size, uintptr_t* begin) {
  std::lock_guard lock(mutex_);
  Range range;
  range.mapping_size = size + 2 * kGranularity;  // aligned, with a guard before and after
  range.mapping = MapAddresses(range.mapping_size);
  if (range.mapping == nullptr) return false;
  range.begin = RoundUp(reinterpret_cast<uintptr_t>(range.mapping) + kPage, kGranularity);
  range.size = size;
  range.kind = Range::kReserved;
  *begin = range.begin;
  reserved_[range.begin] = range;
  return true;
}

bool Machine::Unreserve(uintptr_t begin, size_t size) {
  std::lock_guard lock(mutex_);
  const auto found = reserved_.find(begin);
  if (found == reserved_.end() || found->second.size != size) return false;
  const auto map = ranges_.lower_bound(begin);
  if (map != ranges_.end() && map->first < begin + size) return false;  // still mapped
  munmap(found->second.mapping, found->second.mapping_size);
  reserved_.erase(found);
  return true;
}

cudaError_t Machine::CreatePhysical(int device, size_t size, uint64_t* handle) {
  std::lock_guard lock(mutex_);
  Device& of = devices_[device];
  if (of.used + static_cast<int64_t>(size) > options_.memory_bytes) {
    return cudaErrorMemoryAllocation;
  }
  if (of.file < 0) of.file = memfd_create("cuda_emulator", MFD_CLOEXEC);
  if (of.file < 0 || ftruncate(of.file, of.file_end + static_cast<int64_t>(size)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  Physical physical;
  physical.size = size;
  physical.offset = of.file_end;
  physical.device = device;
  of.file_end += static_cast<int64_t>(size);
  of.used += static_cast<int64_t>(size);
  *handle = next_handle_++;
  physical_[*handle] = physical;
  Count(counts.allocations);
  return cudaSuccess;
}

bool Machine::ReleasePhysical(uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto found = physical_.find(handle);
  if (found == physical_.end() || found->second.released) return false;
  found->second.released = true;
  DropPhysical(handle);
  Count(counts.frees);
  return true;
}

// The memory goes when nobody names it and nothing maps it.
void Machine::DropPhysical(uint64_t handle) {
  const auto found = physical_.find(handle);
  const Physical& physical = found->second;
  if (!physical.released || physical.maps > 0) return;
  Device& of = devices_[physical.device];
  of.used -= static_cast<int64_t>(physical.size);
  fallocate(of.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical.offset,
            static_cast<int64_t>(physical.size));
  physical_.erase(found);
}

bool Machine::Map(uintptr_t begin, size_t size, uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto found = physical_.find(handle);
  auto after = reserved_.upper_bound(begin);
  if (found == physical_.end() || found->second.released || found->second.size != size ||
      after == reserved_.begin() || begin + size > std::prev(after)->second.end()) {
    return false;
  }
  const auto map = ranges_.lower_bound(begin);
  if (Find(begin) != nullptr || (map != ranges_.end() && map->first < begin + size)) return false;
  Physical& physical = found->second;
  if (mmap(reinterpret_cast<void*>(begin), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
           devices_[physical.device].file, physical.offset) == MAP_FAILED) {
    return false;
  }
  ++physical.maps;
  Range range;
  range.begin = begin;
  range.size = size;
  range.kind = Range::kMapped;
  range.device = physical.device;
  ranges_[begin] = range;
  map_handles_[begin] = handle;
  return true;
}

bool Machine::Unmap(uintptr_t begin, size_t size) {
  std::lock_guard lock(mutex_);
  uintptr_t at = begin;
  while (at < begin + size) {  // whole maps, without gaps
    const auto found = ranges_.find(at);
    if (found == ranges_.end() || found->second.kind != Range::kMapped) return false;
    at = found->second.end();
  }
  if (at != begin + size) return false;
  mmap(reinterpret_cast<void*>(begin), size, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  for (auto it = ranges_.find(begin); it != ranges_.end() && it->first < begin + size;) {
    const uint64_t handle = map_handles_[it->first];
    map_handles_.erase(it->first);
    it = ranges_.erase(it);
    --physical_[handle].maps;
    DropPhysical(handle);
  }
  return true;
}

bool Machine::SetAccess(uintptr_t begin, size_t size, bool open) {
  std::lock_guard lock(mutex_);
  uintptr_t at = begin;
  while (at < begin + size) {
    const auto found = ranges_.find(at);
    if (found == ranges_.end() || found->second.kind != Range::kMapped) return false;
    at = found->second.end();
  }
  for (auto it = ranges_.find(begin); it != ranges_.end() && it->first < begin + size; ++it) {
    Range& range = it->second;
    range.open = open;
    Protect(range, open);
    Physical& physical = physical_[map_handles_[range.begin]];
    if (open && physical.fresh && options_.poison) {
      std::memset(reinterpret_cast<void*>(range.begin), 0xff, std::min(range.size, kPoisoned));
    }
    physical.fresh = physical.fresh && !open;
    if (options_.trap && working_ == 0) Protect(range, false);
  }
  return true;
}

void Machine::Protect(const Range& range, bool open) const {
  const uintptr_t begin = range.begin / kPage * kPage;
  const size_t size = RoundUp(range.end() - begin, kPage);
  if (mprotect(reinterpret_cast<void*>(begin), size, open ? PROT_READ | PROT_WRITE : PROT_NONE) !=
      0) {
    std::fprintf(stderr, "cuda_emulator: mprotect failed\n");
    std::abort();
  }
}

// Without the trap this takes no lock: a lock would order the work of streams that nothing orders.
void Machine::BeginWork() {
  if (!options_.trap) return;
  std::lock_guard lock(mutex_);
  if (working_++ > 0) return;
  for (const auto& [begin, range] : ranges_) {
    if (range.kind != Range::kHost && range.open) Protect(range, true);
  }
}

void Machine::EndWork() {
  if (!options_.trap) return;
  std::lock_guard lock(mutex_);
  if (--working_ > 0) return;
  for (const auto& [begin, range] : ranges_) {
    if (range.kind != Range::kHost) Protect(range, false);
  }
}

}  // namespace emulated
